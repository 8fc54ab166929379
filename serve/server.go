package serve

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/mqnotify/mqnotify/internal/loopback"
	"github.com/mqnotify/mqnotify/internal/metrics"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// Server serves topics over HTTP. Safe for concurrent use.
type Server struct {
	db       *notify.DB
	options  Options
	log      *slog.Logger
	topics   map[string]*topic
	metrics  *serverMetrics
	pulse    *pulse
	tracer   trace.Tracer
	handler  http.Handler
	stopping chan struct{} // closed when the server stops; streams then end
	stopOnce sync.Once

	wrongTokens seldom // limits log lines
}

// topic is a served table.
type topic struct {
	name     string
	hub      *hub
	status   *statusCache
	producer *producer.Producer
	metrics  *topicMetrics
}

// New prepares a server; it does not connect. The caller keeps and closes the DB.
func New(db *notify.DB, options Options) (*Server, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		db: db, options: options, log: options.Logger, topics: make(map[string]*topic), pulse: newPulse(db),
		stopping: make(chan struct{}), tracer: options.Tracer.Tracer("github.com/mqnotify/mqnotify/serve"),
	}
	s.metrics = newMetrics(s)
	for _, name := range options.Topics {
		p, err := producer.New(db, name, producer.Options{Logger: s.log})
		if err != nil {
			return nil, err
		}
		m := s.metrics.topic(name)
		s.topics[name] = &topic{name, newHub(db, name, options, m), newStatusCache(db, name, options), p, m}
	}
	s.handler = s.routes()
	return s, nil
}

// The routes that change dead letters.
const (
	retryPattern = "POST /topics/{topic}/dead-letters/{id}/retry"
	dropPattern  = "DELETE /topics/{topic}/dead-letters/{id}"
)

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", servePage)
	mux.HandleFunc("GET /page.js", servePage)
	mux.HandleFunc("GET /page.css", servePage)
	mux.HandleFunc("GET /healthz", metrics.Health)
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /metrics", s.anyTopic(metrics.Handler(s.metrics.registry)))
	mux.HandleFunc("GET /topics", s.list)
	mux.Handle("GET /topics/{topic}", s.forTopic(scopeRead, s.state))
	mux.Handle("GET /topics/{topic}/events", s.forTopic(scopeRead, s.stream))
	mux.Handle("GET /topics/{topic}/messages", s.forTopic(scopeRead, s.poll))
	mux.Handle("POST /topics/{topic}/messages", s.forTopic(scopePublish, s.publish))
	mux.Handle("GET /topics/{topic}/dead-letters", s.forTopic(scopeAdmin, s.usesDatabase(s.deadLetters)))
	mux.Handle(retryPattern, s.forTopic(scopeAdmin, s.usesDatabase(s.retryDeadLetter)))
	mux.Handle(dropPattern, s.forTopic(scopeAdmin, s.usesDatabase(s.dropDeadLetter)))
	return s.guard(mux)
}

// Handler returns a handler for an HTTP server of the caller's own. It needs a running Run.
func (s *Server) Handler() http.Handler { return s.handler }

// guard checks every request, and sets the headers and deadlines of every answer.
func (s *Server) guard(next http.Handler) http.Handler {
	// Another site's page in the user's browser can send requests that need no preflight.
	cross := http.NewCrossOriginProtection()
	for _, origin := range s.options.Origins {
		_ = cross.AddTrustedOrigin(origin) // withDefaults has checked it
	}
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusForbidden, "a page of another site may not do this: allow the site with --cors, or send no Origin")
	}))
	next = s.limited(cross.Handler(next))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)  // fails only with a test's recorder, which has no deadlines
		_ = control.SetWriteDeadline(time.Time{}) // remove the deadline of the connection's last request
		if r.ContentLength != 0 {
			// Also for a request that is refused, because net/http reads the rest of its body before it answers.
			_ = control.SetReadDeadline(time.Now().Add(s.options.body))
		}
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cache-Control", "no-store")
		if r.TLS != nil && !loopback.Is(r.Host) { // on a developer's machine other programs may use HTTP
			header.Set("Strict-Transport-Security", "max-age=31536000")
		}
		if len(s.options.tokens) == 0 && !loopback.Is(r.Host) {
			fail(w, http.StatusForbidden, "without tokens this server answers only requests for localhost")
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && slices.Contains(s.options.Origins, origin) {
			header.Set("Access-Control-Allow-Origin", origin)
			header.Add("Vary", "Origin")
			header.Set("Access-Control-Expose-Headers", "Idempotency-Replayed, Retry-After")
			if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
				header.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
				header.Set("Access-Control-Allow-Headers", allowedHeaders(r.Header.Get("Access-Control-Request-Headers")))
				header.Set("Access-Control-Max-Age", "600")
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		a := &answer{ResponseWriter: w, within: s.options.answer}
		began := time.Now()
		next.ServeHTTP(a, r)
		s.access(r, a, time.Since(began))
	})
}

// allowedHeaders returns the headers that a page may send: fixed ones, and those of wanted that become headers of a message.
func allowedHeaders(wanted string) string {
	allowed := []string{"Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "traceparent", "tracestate"}
	for name := range strings.SplitSeq(wanted, ",") {
		if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); strings.HasPrefix(name, headerPrefix) {
			allowed = append(allowed, name)
		}
	}
	return strings.Join(allowed, ", ")
}

// answer limits the time that a client may take to read the answer. The time begins with the answer, because a request may wait longer
// for a message or for the database. Over HTTP/2 a deadline that passes ends the stream even if nothing is being written, so there must
// be none while the request waits. Streams set a deadline for each write.
type answer struct {
	http.ResponseWriter
	within time.Duration
	begun  bool
	status int
	token  string // the token's name
}

func (a *answer) begin() {
	if !a.begun {
		a.begun = true
		_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(a.within)) // fails only with a test's recorder
	}
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	a.begin()
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	a.begin()
	return a.ResponseWriter.Write(p)
}

// Unwrap is called by http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// forTopic calls handle if the request's token has the scope for the topic.
func (s *Server) forTopic(scope scope, handle func(w http.ResponseWriter, r *http.Request, t *topic)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("topic")
		token := s.authenticate(w, r)
		switch {
		case token == nil:
		case !token.allows(scope, name):
			fail(w, http.StatusForbidden, fmt.Sprintf("the token does not have the scope %s for this topic", scope))
		case s.topics[name] == nil:
			fail(w, http.StatusNotFound, "this topic is not served")
		default:
			handle(w, r, s.topics[name])
		}
	})
}

// anyTopic calls next if the request's token may read all topics.
func (s *Server) anyTopic(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := s.authenticate(w, r)
		switch {
		case token == nil:
		case !token.allows(scopeRead, "*"):
			fail(w, http.StatusForbidden, "the token does not have the scope read for all topics (read:*)")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// ready handles GET /readyz: 200 if all topics are being read and the database answers.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	select {
	case <-s.stopping:
		fail(w, http.StatusServiceUnavailable, "the server is stopping")
		return
	default:
	}
	for _, t := range s.topics {
		if _, _, err := t.hub.state(); err != nil {
			fail(w, http.StatusServiceUnavailable, "not all topics are being read") // the log has the reason, which not everyone may see
			return
		}
	}
	if s.pulse.check(r.Context()) != nil {
		fail(w, http.StatusServiceUnavailable, "the database does not answer")
		return
	}
	reply(w, http.StatusOK, map[string]string{"status": "ok"})
}

// Run reads the topics until ctx ends, and returns when all its goroutines have ended. It reconnects by itself. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, t := range s.topics {
		running.Go(func() { t.hub.run(ctx) })
	}
	running.Go(func() { s.begun(ctx) })
	running.Go(func() { s.metrics.readers.Clock.Run(ctx, s.db) })
	running.Go(func() { s.forgetKeys(ctx) })
	<-ctx.Done()
	s.stop()
	running.Wait()
	var err error
	for _, t := range s.topics {
		err = errors.Join(err, t.producer.Close())
	}
	return err
}

// begun calls Options.Ready when all hubs have begun.
func (s *Server) begun(ctx context.Context) {
	for _, t := range s.topics {
		select {
		case <-t.hub.begun:
		case <-ctx.Done():
			return
		}
	}
	s.options.Ready()
}

// stop ends the streams.
func (s *Server) stop() { s.stopOnce.Do(func() { close(s.stopping) }) }

// Serve runs the server on a listener until ctx ends. Then it tells clients of streams to reconnect, finishes running requests, and
// closes the listener. With a TLS configuration it serves HTTPS. It returns ErrNoTokens if other machines can reach the address and
// there are no tokens. Other errors are the listener's. Serve calls Run; call one of them, once.
func (s *Server) Serve(ctx context.Context, listener net.Listener, secure *tls.Config) error {
	defer func() { _ = listener.Close() }()
	if address := listener.Addr().String(); len(s.options.tokens) == 0 && !loopback.Is(address) {
		return fmt.Errorf("serve: %s: %w: set Options.Tokens, or listen on 127.0.0.1", address, ErrNoTokens)
	}
	server := &http.Server{
		Handler:           s.handler,
		TLSConfig:         secure,
		ReadHeaderTimeout: s.options.header,
		IdleTimeout:       2 * time.Minute,
		ConnState:         connState,
		MaxHeaderBytes:    64 << 10, // room for a cursor and a browser's headers
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	var running sync.WaitGroup
	var ran error
	running.Go(func() { ran = s.Run(reading) })
	serving := make(chan error, 1)
	go func() {
		limited := newLimitListener(listener, s.options.MaxConnections+reserve(s.options.MaxConnections), s.options.header)
		if secure != nil {
			serving <- server.ServeTLS(limited, "", "")
		} else {
			serving <- server.Serve(limited)
		}
	}()
	var err error
	select {
	case err = <-serving:
	case <-ctx.Done():
		s.stop()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.StopTimeout)
		defer cancel()
		if late := server.Shutdown(last); late != nil {
			err = errors.Join(late, server.Close())
		}
		if served := <-serving; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
	}
	stopReading()
	running.Wait()
	if err = errors.Join(err, ran); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// reply writes JSON.
func reply(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // it fails only if the client has disconnected
}

// fail writes an error as JSON.
func fail(w http.ResponseWriter, status int, text string) {
	reply(w, status, map[string]string{"error": text})
}

// failLater answers 503, and asks the client to try again.
func failLater(w http.ResponseWriter, text string) {
	w.Header().Set("Retry-After", "2")
	fail(w, http.StatusServiceUnavailable, text)
}
