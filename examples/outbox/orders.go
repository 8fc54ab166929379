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
	errKnown   = errors.New("the order is there already")
)

// duplicate is the number of the error for a key that is there already.
const duplicate = 1062

// event is what the warehouse gets.
type event struct {
	Order int64  `json:"order"`
	Item  string `json:"item"`
}

// orders takes them: PUT /orders/KEY with the item.
type orders struct {
	db *mqnotify.DB
}

func (o *orders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, found := strings.CutPrefix(r.URL.Path, "/orders/")
	item, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	if !found || key == "" || len(key) > 64 || r.Method != http.MethodPut || err != nil {
		http.Error(w, "PUT /orders/KEY with an item, both of 64 bytes at most", http.StatusBadRequest)
		return
	}
	switch err := o.place(r.Context(), key, string(item)); {
	case err == nil:
		w.WriteHeader(http.StatusCreated)
	case errors.Is(err, errKnown):
		w.WriteHeader(http.StatusOK)
	case errors.Is(err, errSoldOut):
		http.Error(w, err.Error(), http.StatusConflict)
	default: // also when the answer to the COMMIT is lost: the same key again finds out
		slog.ErrorContext(r.Context(), "place an order", "error", err)
		http.Error(w, "try again with the same key", http.StatusServiceUnavailable)
	}
}

// place is the outbox: three tables, one transaction.
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
