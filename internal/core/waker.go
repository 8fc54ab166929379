package core

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

const (
	// wakePatience bounds a call of mqnotify_wake.
	wakePatience = 5 * time.Second
	// wakeRest is the minimum time between two calls of a Waker, because a leader can't be woken more often.
	wakeRest = time.Second / waiting.SlotsPerSecond
	// wakeKnown is how long a Waker caches whether a table has a wake trigger.
	wakeKnown = time.Minute
)

// Wake wakes the processes that listen to the table. Call it after a commit if the table has no wake trigger. It returns the
// server's errors. If the database has no procedure mqnotify_wake, Wake does nothing, and the processes poll.
func (db *DB) Wake(ctx context.Context, table string) error {
	_, err := db.pool.ExecContext(ctx, "CALL "+waiting.WakeRoutine+"(?)", table)
	if err != nil && !waiting.NoRoutine(err) {
		return fmt.Errorf("notify: wake the listeners of %s: %w", table, err)
	}
	return nil
}

// Waker wakes the processes that listen to a table after commits, in the background, if the table has no wake trigger.
// Safe for concurrent use.
type Waker struct {
	db    *DB
	table string
	event waiting.Events
	log   *slog.Logger

	mu      sync.Mutex
	wanted  bool
	runs    bool
	closed  bool
	useless bool      // a trigger wakes the listeners, or there is no mqnotify_wake
	asked   time.Time // when useless was last read
	calls   sync.WaitGroup
}

// NewWaker returns a Waker for changes of the kind. It does not connect. The caller closes it.
func NewWaker(db *DB, table string, event waiting.Events, log *slog.Logger) *Waker {
	return &Waker{db: db, table: table, event: event, log: log}
}

// Wake starts a call of mqnotify_wake and does not wait for it. Several Wakes may share one call, which begins after all of them. A
// call that fails is logged: it costs the listeners time, and no row.
func (w *Waker) Wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.useless || time.Since(w.asked) >= wakeKnown {
		w.want()
	}
}

// WakeAlways is Wake for a change of another kind: it calls mqnotify_wake even if the table has a wake trigger.
func (w *Waker) WakeAlways() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.want()
}

func (w *Waker) want() {
	if w.closed {
		return
	}
	w.wanted = true
	if !w.runs {
		w.runs = true
		w.calls.Go(w.run)
	}
}

// run calls until no call is wanted.
func (w *Waker) run() {
	var said time.Time
	for w.takes() {
		begun := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), wakePatience)
		err := w.db.Wake(ctx, w.table)
		if err == nil && time.Since(w.asked) > wakeKnown {
			err = w.ask(ctx)
		}
		cancel()
		if err != nil && !w.db.closed.Load() && time.Since(said) > wakeKnown {
			said = time.Now()
			w.log.Warn("the listeners were not woken: they find the rows by polling", "error", err)
		}
		_ = server.Pause(context.Background(), wakeRest-time.Since(begun)) // not long: Close waits for it
	}
}

// packetConns is the largest number of connections that accept several statements in a packet.
const packetConns = 4

// Conn returns a connection that accepts several statements in one packet, so that the caller can send an INSERT and a CALL of
// mqnotify_wake together, which saves a round trip. It returns nil if a wake trigger makes the call needless, if that is
// not known yet, or if none of the DB's four such connections is free. The caller then uses the DB's pool, and calls Wake after the
// commit. The caller closes the connection. Conn returns errors of connecting. Pass all values as parameters: the
// server would run any statement after a semicolon.
func (w *Waker) Conn(ctx context.Context) (*sql.Conn, error) {
	w.mu.Lock()
	calls := !w.useless && !w.closed && time.Since(w.asked) < wakeKnown
	w.mu.Unlock()
	if !calls || w.db.packets.Stats().InUse >= packetConns {
		return nil, nil //nolint:nilnil // the caller needs none
	}
	return w.db.packets.Conn(ctx)
}

// takes reports whether a call is wanted, and clears the request.
func (w *Waker) takes() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs, w.wanted = w.wanted, false
	return w.runs
}

// ask reads whether calls are useful.
func (w *Waker) ask(ctx context.Context) error {
	triggers, err := waiting.ReadTriggers(ctx, w.db.pool)
	if err != nil && !waiting.NoRoutine(err) {
		return fmt.Errorf("notify: read the wake triggers: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.useless, w.asked = err != nil || triggers[w.table]&w.event != 0, time.Now()
	return nil
}

// Close returns when no call is running and every wanted call was made. It may be called twice.
func (w *Waker) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.calls.Wait()
	return nil
}
