package serve

import (
	"context"
	"net/http"
)

// useDatabase waits for a permit to use the database, and answers 503 and returns false if there is none in time. The limit leaves
// connections to the database's other clients, however many requests arrive. The caller calls leave.
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

// busy answers 503 with Retry-After.
func (s *Server) busy(w http.ResponseWriter, text string) {
	s.metrics.busy.Inc()
	failLater(w, text)
}

// usesDatabase wraps a handler that uses the database.
func (s *Server) usesDatabase(handle func(w http.ResponseWriter, r *http.Request, t *topic)) func(w http.ResponseWriter, r *http.Request, t *topic) {
	return func(w http.ResponseWriter, r *http.Request, t *topic) {
		if leave, ok := s.useDatabase(w, r); ok {
			defer leave()
			handle(w, r, t)
		}
	}
}
