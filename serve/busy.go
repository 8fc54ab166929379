package serve

import (
	"context"
	"net/http"
)

// permit waits for one of the permits, and answers 503 with a text and returns false if there is none in time. The caller calls leave.
func (s *Server) permit(w http.ResponseWriter, r *http.Request, permits chan struct{}, busy string) (leave func(), ok bool) {
	leave = func() { <-permits }
	select {
	case permits <- struct{}{}: // on a busy machine the time below may be over before select looks
		return leave, true
	default:
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.options.crowded)
	defer cancel()
	select {
	case permits <- struct{}{}:
		return leave, true
	case <-ctx.Done():
		s.busy(w, busy)
		return nil, false
	}
}

// useDatabase waits for a permit to use the database. The limit leaves connections to the database's other clients, however many
// requests arrive.
func (s *Server) useDatabase(w http.ResponseWriter, r *http.Request) (leave func(), ok bool) {
	return s.permit(w, r, s.options.requests, "too many requests use the database: try again")
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
