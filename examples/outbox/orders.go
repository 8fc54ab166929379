package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/producer"
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
	events *producer.Producer
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
	default: // producer.ErrUnknown among them: the same key again finds out
		slog.ErrorContext(r.Context(), "place an order", "error", err)
		http.Error(w, "try again with the same key", http.StatusServiceUnavailable)
	}
}

// place is the outbox: three tables, one transaction.
func (o *orders) place(ctx context.Context, key, item string) error {
	return o.events.Transact(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
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
		message, err := json.Marshal(event{id, item})
		if err != nil {
			return err
		}
		_, err = o.events.PublishTx(ctx, tx, producer.Message{Payload: message})
		return err
	})
}
