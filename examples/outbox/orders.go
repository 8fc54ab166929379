package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify"
)

var (
	errSoldOut = errors.New("sold out")
	errKnown   = errors.New("the order exists already")
)

// duplicate is the number of MySQL's error for a key that exists already.
const duplicate = 1062

// event is the message to the warehouse.
type event struct {
	Order int64  `json:"order"`
	Item  string `json:"item"`
}

// orders is the handler of PUT /orders/KEY; the body is the item.
type orders struct {
	db *mqnotify.DB
}

func (o *orders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, found := strings.CutPrefix(r.URL.Path, "/orders/")
	item, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	if !found || key == "" || len(key) > 64 || r.Method != http.MethodPut || err != nil {
		http.Error(w, "PUT /orders/KEY with an item, each of at most 64 bytes", http.StatusBadRequest)
		return
	}
	switch err := o.place(r.Context(), key, string(item)); {
	case err == nil:
		w.WriteHeader(http.StatusCreated)
	case errors.Is(err, errKnown):
		w.WriteHeader(http.StatusOK)
	case errors.Is(err, errSoldOut):
		http.Error(w, err.Error(), http.StatusConflict)
	default: // maybe the answer to the COMMIT was lost: a repetition with the same key finds out
		slog.ErrorContext(r.Context(), "place an order", "error", err)
		http.Error(w, "try again with the same key", http.StatusServiceUnavailable)
	}
}

// place writes to the three tables of the outbox pattern in one transaction.
func (o *orders) place(ctx context.Context, key, item string) error {
	tx, err := o.db.Core().Pool().BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	order, err := tx.ExecContext(ctx, "INSERT INTO orders (client_key, item) VALUES (?, ?)", key, item)
	if no := (*mysql.MySQLError)(nil); errors.As(err, &no) && no.Number == duplicate {
		return errKnown
	}
	if err != nil {
		return err
	}
	id, err := order.LastInsertId()
	if err != nil {
		return err
	}
	taken, err := tx.ExecContext(ctx, "UPDATE stock SET pieces = pieces - 1 WHERE item = ? AND pieces > 0", item)
	if err != nil {
		return err
	}
	if n, err := taken.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errSoldOut, err)
	}
	if err := mqnotify.PublishTx(ctx, o.db, tx, topic, event{id, item}); err != nil {
		return err
	}
	return tx.Commit()
}
