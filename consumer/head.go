package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/table"
)

// ErrBelowOffset means that the table's ids end below the offset: the table was truncated, a counter was set back, or the offset
// belongs to another table. New rows would count as handled already. If the account has PROCESS, Run also returns it for a table that
// was truncated and has since got more rows. Start again with Options.Reset, From "beginning" (consume --reset --from beginning).
var ErrBelowOffset = errors.New("the table's ids end below the offset")

// head returns the largest visible id, or 0 if there is none.
func (r *reader) head(ctx context.Context) (uint64, error) {
	head, _, err := largest(ctx, r.rows)
	return head, err
}

func largest(ctx context.Context, r *rows) (head uint64, exists bool, err error) {
	var id sql.Null[uint64]
	err = r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		query := "SELECT MAX(" + r.key + ") FROM " + ident.Quote(r.table.Name) + " WHERE " + r.key + " >= 0"
		return conn.QueryRowxContext(ctx, query).Scan(&id)
	})
	if err != nil {
		return 0, false, fmt.Errorf("consumer: read the head: %w", err)
	}
	return id.V, id.Valid, nil
}

// checkHead returns ErrBelowOffset if the table was truncated. After a DELETE of all rows the ids continue, which is no error.
func (r *reader) checkHead(ctx context.Context) error {
	r.checked = time.Now()
	return checkHead(ctx, r.rows, r.wm.settled, "the offset is %d: was it truncated? start again with --reset --from beginning (Options.Reset and From)")
}

// checkLeast returns notify.ErrNotTopic if the table has a row with an id below 1, because no consumer reads it. Such a row is
// a program's mistake, or was inserted with NO_AUTO_VALUE_ON_ZERO. With AcceptAnyKey checkLeast only warns.
func (r *reader) checkLeast(ctx context.Context) error {
	var below bool
	err := r.rows.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		return conn.GetContext(ctx, &below, "SELECT EXISTS (SELECT 1 FROM "+ident.Quote(r.rows.table.Name)+" WHERE "+r.rows.key+" <= 0"+r.rows.where+")")
	})
	switch {
	case err != nil:
		return fmt.Errorf("consumer: look for ids below 1: %w", err)
	case !below:
		return nil
	case r.rows.anyKey:
		if !r.warned {
			r.warned = true
			r.log.WarnContext(ctx, "rows whose key is 0 or less are not read", "key", r.rows.keyName)
		}
		return nil
	}
	return fmt.Errorf("consumer: %s has rows whose %s is 0 or less, which would never be read: give them other ids, or delete them; "+
		"Options.AcceptAnyKey (--any-key) reads the others: %w", r.rows.table, r.rows.key, table.ErrNoKey)
}

// checkHead returns ErrBelowOffset if the table ends before settled. reason has a place for settled.
func checkHead(ctx context.Context, r *rows, settled uint64, reason string) error {
	head, exists, err := largest(ctx, r)
	if err != nil || head >= settled {
		return err
	}
	var next uint64
	var known bool
	err = r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		next, known, err = table.NextAutoIncrement(ctx, conn.Conn, r.table)
		return err
	})
	if err != nil {
		return fmt.Errorf("consumer: read the next id: %w", err)
	}
	if known && next > settled || !known && !exists {
		return nil
	}
	return fmt.Errorf("consumer: %s ends at id %d and %s: %w", r.table, head, fmt.Sprintf(reason, settled), ErrBelowOffset)
}
