package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify"
)

// prices are read through the cache and written past it.
type prices struct {
	db    *mqnotify.DB
	cache cache
}

func (p *prices) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /prices/{id}", p.get)
	mux.HandleFunc("PUT /prices/{id}", p.put)
	return mux
}

func (p *prices) get(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	cents, hit, err := p.cache.get(id, func() (cents int64, err error) {
		err = p.db.Core().Pool().GetContext(r.Context(), &cents, "SELECT cents FROM prices WHERE id = ?", id)
		return cents, err
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		http.NotFound(w, r)
		return
	case err != nil:
		fail(w, r, err)
		return
	case hit:
		w.Header().Set("X-Cache", "hit")
	default:
		w.Header().Set("X-Cache", "miss")
	}
	_, _ = fmt.Fprintln(w, cents)
}

// put changes a price and publishes the change: both or neither.
func (p *prices) put(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	body, unread := io.ReadAll(http.MaxBytesReader(w, r.Body, 32))
	cents, wrong := strconv.ParseInt(strings.TrimSpace(string(body)), 10, 64)
	if errors.Join(err, unread, wrong) != nil {
		http.Error(w, "PUT /prices/ID with a price in cents", http.StatusBadRequest)
		return
	}
	err = p.change(r.Context(), id, cents)
	p.cache.forget(id) // the client that changed it sees that at once
	if err != nil {
		fail(w, r, err)
	}
}

func (p *prices) change(ctx context.Context, id, cents int64) error {
	tx, err := p.db.Core().Pool().BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if _, err := tx.ExecContext(ctx, "REPLACE INTO prices VALUES (?, ?)", id, cents); err != nil {
		return err
	}
	if err := mqnotify.PublishTx(ctx, p.db, tx, topic, strconv.FormatInt(id, 10)); err != nil {
		return err
	}
	return tx.Commit()
}

// changed forgets the price that a message names.
func (p *prices) changed(ctx context.Context, m mqnotify.Message[string]) error {
	id, err := strconv.ParseInt(m.Value, 10, 64)
	if err != nil {
		slog.WarnContext(ctx, "not the id of a price", "message", m.ID, "error", err)
		return nil
	}
	p.cache.forget(id)
	return nil
}

func fail(w http.ResponseWriter, r *http.Request, err error) {
	slog.ErrorContext(r.Context(), "request", "path", r.URL.Path, "error", err)
	http.Error(w, "try again", http.StatusServiceUnavailable)
}
