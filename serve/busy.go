package serve

import (
	"context"
	"net/http"
)

// useDatabase waits until the request may use the database, so that however many requests come at the same time, the
// server's other clients keep their connections. It reports false after a 503. The caller calls leave.
func (s *Server) useDatabase(w http.ResponseWriter, r *http.Request) (leave func(), ok bool) {
	ctx, cancel := context.WithTimeout(r.Context(), s.options.crowded)
	defer cancel()
	select {
	case s.options.requests <- struct{}{}:
		return func() { <-s.options.requests }, true
	case <-ctx.Done():
		s.busy(w, "too many requests use the database: try again")
		return nil, false
	}
}

// busy answers that the request can be sent again when others have ended.
func (s *Server) busy(w http.ResponseWriter, text string) {
	s.metrics.busy.Inc()
	w.Header().Set("Retry-After", "2")
	fail(w, http.StatusServiceUnavailable, text)
}

// usesDatabase is for handlers that use the database from their beginning.
func (s *Server) usesDatabase(handle func(w http.ResponseWriter, r *http.Request, t *topic)) func(w http.ResponseWriter, r *http.Request, t *topic) {
	return func(w http.ResponseWriter, r *http.Request, t *topic) {
		if leave, ok := s.useDatabase(w, r); ok {
			defer leave()
			handle(w, r, t)
		}
	}
}
