package bench

import (
	"context"
	"errors"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
)

// floors are bare sessions for the floors.
type floors struct {
	holder, waiter      *core.Session
	name, table, insert string
}

func (b *bench) floors(ctx context.Context) (*floors, error) {
	f := &floors{
		name:   core.LockName("bench", b.db.Name(), b.topic),
		table:  ident.Quote(b.topic),
		insert: "INSERT INTO " + ident.Quote(b.topic) + " (headers, payload) VALUES (NULL, 'x')",
	}
	for _, session := range []**core.Session{&f.holder, &f.waiter} {
		var err error
		if *session, err = core.NewSession(ctx, b.db, core.SessionOptions{IdleTimeout: time.Hour}); err != nil {
			return nil, err
		}
		b.atEnd((*session).Close)
	}
	return f, nil
}

func ask(ctx context.Context, session *core.Session, query string, args ...any) error {
	return session.Do(ctx, func(conn *sqlx.Conn) error {
		var n int
		return conn.QueryRowxContext(ctx, query, args...).Scan(&n)
	})
}

// trip measures a round trip.
func (f *floors) trip(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	err := ask(ctx, f.holder, "SELECT 1")
	return time.Since(begun), err
}

// commit measures the INSERT and commit of one row.
func (f *floors) commit(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	err := f.holder.Do(ctx, func(conn *sqlx.Conn) error {
		_, err := conn.ExecContext(ctx, f.insert)
		return err
	})
	return time.Since(begun), err
}

// handOver measures the time from the release of a lock until a session that waits for it has it.
func (f *floors) handOver(ctx context.Context) (time.Duration, error) {
	if err := ask(ctx, f.holder, "SELECT GET_LOCK(?, 0)", f.name); err != nil {
		return 0, err
	}
	var passed time.Time
	waited := make(chan error, 1)
	go func() {
		err := ask(ctx, f.waiter, "SELECT GET_LOCK(?, 10)", f.name)
		passed = time.Now()
		waited <- err
	}()
	rest(ctx)
	begun := time.Now()
	if err := ask(ctx, f.holder, "SELECT RELEASE_LOCK(?)", f.name); err != nil {
		return 0, errors.Join(err, <-waited)
	}
	if err := <-waited; err != nil {
		return 0, err
	}
	return passed.Sub(begun), ask(ctx, f.waiter, "SELECT RELEASE_LOCK(?)", f.name)
}
