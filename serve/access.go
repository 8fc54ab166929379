package serve

import (
	"cmp"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// authenticate returns the token that the request shows, or answers 401 and returns nil.
func (s *Server) authenticate(w http.ResponseWriter, r *http.Request) *token {
	token := s.token(r)
	if token == nil {
		s.unauthorized(w, r)
		return nil
	}
	if a, ok := w.(*answer); ok {
		a.token = token.name
	}
	return token
}

// unauthorized refuses a request. It counts and logs a wrong token, and answers it late, so that guessing tokens takes time. Only
// a limited number of answers are late at the same time; further requests get 429 at once.
func (s *Server) unauthorized(w http.ResponseWriter, r *http.Request) {
	status, text := http.StatusUnauthorized, "send a token: Authorization: Bearer TOKEN"
	if r.Header.Get("Authorization") != "" {
		s.metrics.wrongTokens.Inc()
		s.wrongTokens.log(s.log, r)
		select {
		case s.options.penalties <- struct{}{}:
			late := time.NewTimer(s.options.penalty)
			select {
			case <-late.C:
			case <-r.Context().Done():
			case <-s.stopping:
			}
			late.Stop()
			<-s.options.penalties
		default:
			status, text = http.StatusTooManyRequests, "too many wrong tokens: try again"
			w.Header().Set("Retry-After", "2")
		}
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="mqnotify"`)
	fail(w, status, text)
}

// seldom logs wrong tokens at most once a second, with the number of those that it left out.
type seldom struct {
	mu      sync.Mutex
	last    time.Time
	omitted int
}

func (l *seldom) log(to *slog.Logger, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last) < time.Second {
		l.omitted++
		return
	}
	to.WarnContext(r.Context(), "a request had a wrong token", "client", clientAddress(r), "path", r.URL.Path, "others", l.omitted)
	l.last, l.omitted = time.Now(), 0
}

// access logs a request: changes of dead letters at level info, the others at level debug.
func (s *Server) access(r *http.Request, a *answer, took time.Duration) {
	level := slog.LevelDebug
	if r.Pattern == retryPattern || r.Pattern == dropPattern {
		level = slog.LevelInfo
	}
	status := cmp.Or(a.status, http.StatusOK) // net/http's default
	s.log.Log(r.Context(), level, "request", "method", r.Method, "path", r.URL.Path, "status", status, "token", a.token,
		"client", clientAddress(r), "took", took)
}
