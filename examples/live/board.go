package main

import (
	_ "embed"
	"errors"
	"io"
	"log/slog"
	"net/http"

	"github.com/mqnotify/mqnotify"
	"github.com/mqnotify/mqnotify/notify"
)

//go:embed board.html
var page []byte

// board is the page, its events, and what visitors write.
type board struct {
	events http.Handler
	token  string
	db     *mqnotify.DB
}

func (b *board) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'self' 'unsafe-inline'")
		_, _ = w.Write(page)
	})
	mux.HandleFunc("GET /events", b.read)
	mux.HandleFunc("POST /notes", b.write)
	return http.NewCrossOriginProtection().Handler(mux) // no other site's page writes here
}

// read sends the events to every visitor. A site with users would check here who it is.
func (b *board) read(w http.ResponseWriter, r *http.Request) {
	r = r.Clone(r.Context())
	r.URL.Path = "/topics/" + topic + "/events"
	r.Header.Set("Authorization", "Bearer "+b.token)
	b.events.ServeHTTP(w, r)
}

func (b *board) write(w http.ResponseWriter, r *http.Request) {
	note, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 280))
	if err != nil || len(note) == 0 {
		http.Error(w, "a note has 1 to 280 bytes", http.StatusBadRequest)
		return
	}
	switch err = mqnotify.Publish(r.Context(), b.db, topic, note); {
	case err == nil:
		w.WriteHeader(http.StatusCreated)
	case errors.Is(err, notify.ErrUnknown):
		http.Error(w, "look whether it is there before you write it again", http.StatusBadGateway)
	default:
		slog.ErrorContext(r.Context(), "publish", "error", err)
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}
