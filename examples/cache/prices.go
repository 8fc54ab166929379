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

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// prices are read through the cache and written past it.
type prices struct {
	db      *notify.DB
	changes *producer.Producer
	cache   cache
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
		err = p.db.Pool().GetContext(r.Context(), &cents, "SELECT cents FROM prices WHERE id = ?", id)
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

// put changes a price and says so, both or neither.
func (p *prices) put(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	body, unread := io.ReadAll(http.MaxBytesReader(w, r.Body, 32))
	cents, wrong := strconv.ParseInt(strings.TrimSpace(string(body)), 10, 64)
	if errors.Join(err, unread, wrong) != nil {
		http.Error(w, "PUT /prices/ID with a price in cents", http.StatusBadRequest)
		return
	}
	err = p.changes.Transact(r.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, "REPLACE INTO prices VALUES (?, ?)", id, cents); err != nil {
			return err
		}
		_, err := p.changes.PublishTx(ctx, tx, producer.Message{Payload: strconv.AppendInt(nil, id, 10)})
		return err
	})
	p.cache.forget(id) // whoever changed it sees that at once
	if err != nil {
		fail(w, r, err)
	}
}

func fail(w http.ResponseWriter, r *http.Request, err error) {
	slog.ErrorContext(r.Context(), "request", "path", r.URL.Path, "error", err)
	http.Error(w, "try again", http.StatusServiceUnavailable)
}
