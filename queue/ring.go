package queue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/notify"
)

// maxRing is the largest ring, in entries.
const maxRing = 10_000_000

// CreateRing makes a ring buffer of size entries, 1 to 10,000,000. One that is there
// already stays as it is; it is an error if its size is another.
func CreateRing(ctx context.Context, db *notify.DB, name string, size int) error {
	if err := checkName("the ring's name", name, maxName); err != nil {
		return err
	}
	if size < 1 || size > maxRing {
		return optionsf("the ring %q of %d entries: from 1 to %d", name, size, maxRing)
	}
	_, err := db.Pool().ExecContext(ctx, "INSERT INTO "+schema.RingTable+" (name, size) VALUES (?, ?)", name, size)
	if err != nil && !server.Is(err, server.ErrDuplicate) {
		return fmt.Errorf("queue: make ring %q: %w", name, explain(err))
	}
	var is int
	if err := db.Pool().GetContext(ctx, &is, "SELECT size FROM "+schema.RingTable+" WHERE name = ?", name); err != nil {
		return fmt.Errorf("queue: make ring %q: %w", name, explain(err))
	}
	if is != size {
		return optionsf("the ring %q is there already, with %d entries: use it so, or choose another name", name, is)
	}
	return nil
}

// Ring is a ring buffer: a table of fixed size, in which a new entry overwrites the
// oldest. Nothing waits for its readers, and nothing has to be pruned. Its writers
// append one after the other, so that entries have consecutive numbers in the order of
// their commits. Safe for concurrent use.
type Ring struct {
	db    *notify.DB
	name  string
	waker *core.Waker

	mu     sync.Mutex
	closed bool
	auto   *core.Auto // of the readers, nil before the first
}

// OpenRing is access to a ring buffer. It does not connect; the caller closes it, and
// then the DB.
func OpenRing(db *notify.DB, name string) (*Ring, error) {
	if err := checkName("the ring's name", name, maxName); err != nil {
		return nil, err
	}
	return &Ring{db: db, name: name, waker: core.NewWaker(db, schema.RingTable, slog.Default())}, nil
}

// Close makes Append and Next fail with notify.ErrClosed. It may be called twice.
func (r *Ring) Close() error {
	r.mu.Lock()
	auto := r.auto
	r.closed, r.auto = true, nil
	r.mu.Unlock()
	if auto != nil {
		_ = auto.Close()
	}
	return r.waker.Close()
}

// waiter returns what all readers wait with.
func (r *Ring) waiter() (*core.Auto, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, r.error("read", notify.ErrClosed)
	}
	if r.auto == nil {
		r.auto = core.NewAuto(r.db, core.Query("SELECT head FROM "+schema.RingTable+" WHERE name = ?", r.name).
			Of(schema.RingTable, waiting.Update), core.AutoOptions{Logger: slog.New(slog.DiscardHandler)})
	}
	return r.auto, nil
}

func (r *Ring) error(what string, err error) error {
	if err == nil || errors.Is(err, notify.ErrOptions) {
		return err
	}
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("queue: the ring %q %w: make it with `mqnotify ring create NAME --size N`, in Go CreateRing", r.name, ErrNotFound)
	}
	return fmt.Errorf("queue: %s ring %q: %w", what, r.name, explain(err))
}

// Append writes entries, all or none, in their order, wakes readers, and returns the
// number of the last. The first entry of a ring is number 1. More entries at once than
// the ring has room for are an error. A deadlock is tried again; after a lost connection
// the error is notify.ErrUnknown if the commit may have been done.
func (r *Ring) Append(ctx context.Context, payloads ...[]byte) (last uint64, err error) {
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	if closed {
		return 0, r.error("append to", notify.ErrClosed)
	}
	if len(payloads) == 0 {
		return 0, nil
	}
	err = server.Again(ctx, server.Retryable, func() error {
		last, err = r.append(ctx, payloads)
		return err
	})
	if err != nil {
		return 0, r.error("append to", err)
	}
	r.waker.WakeAlways() // the head is updated
	return last, nil
}

func (r *Ring) append(ctx context.Context, payloads [][]byte) (last uint64, err error) {
	tx, err := r.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	// The ring's row is locked until the commit: writers go one after the other.
	var size, head uint64
	if err := tx.QueryRowContext(ctx, "SELECT size, head FROM "+schema.RingTable+" WHERE name = ? FOR UPDATE", r.name).
		Scan(&size, &head); err != nil {
		return 0, err
	}
	if uint64(len(payloads)) > size {
		return 0, optionsf("%d entries at once: append %d at most, or the last would overwrite the first of them", len(payloads), size)
	}
	for len(payloads) > 0 {
		n := min(len(payloads), 500)
		values := make([]string, n)
		var args []any
		for i, payload := range payloads[:n] {
			if payload == nil {
				payload = []byte{}
			}
			head++
			values[i] = "(?, ?, ?, ?)"
			args = append(args, r.name, head%size, head, payload)
		}
		_, err := tx.ExecContext(ctx, "REPLACE INTO "+schema.RingSlotTable+" (ring, slot, entry, payload) VALUES "+strings.Join(values, ", "), args...)
		if err != nil {
			return 0, fmt.Errorf("write: %w", err)
		}
		payloads = payloads[n:]
	}
	if _, err := tx.ExecContext(ctx, "UPDATE "+schema.RingTable+" SET head = ? WHERE name = ?", head, r.name); err != nil {
		return 0, fmt.Errorf("write: %w", err)
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return head, doubt(tx.Commit())
}

// RingEntry is an entry of a ring.
type RingEntry struct {
	Number    uint64 // 1 for the ring's first; consecutive
	WrittenAt time.Time
	Payload   []byte
	// Missed is how many entries right before this one were overwritten before they were read: a larger ring, or a faster reader,
	// would have them.
	Missed uint64
}

// Head returns the number of the newest entry, 0 if there is none, and how many entries the ring keeps.
func (r *Ring) Head(ctx context.Context) (head uint64, size int, err error) {
	err = r.db.Pool().QueryRowContext(ctx, "SELECT head, size FROM "+schema.RingTable+" WHERE name = ?", r.name).Scan(&head, &size)
	return head, size, r.error("read", err)
}

// ringBound is how often a reader polls when no hint wakes it.
const ringBound = 10 * time.Second

// Read waits until there are entries after the one with the number, and returns at most limit of them, in their order. Reading
// takes nothing away: a reader passes the number of the last entry that it has, or Head's answer for those that come next. 0 means
// from the oldest that is there, and then what was overwritten before the call does not count as missed.
//
// The errors are ErrNotFound, ErrRingShorter, notify.ErrOptions, notify.ErrClosed, the cause of ctx, and the server's, after which
// Read may be called again.
func (r *Ring) Read(ctx context.Context, after uint64, limit int) ([]RingEntry, error) {
	if limit < 1 {
		return nil, optionsf("a limit of %d entries: 1 or more", limit)
	}
	waiter, err := r.waiter()
	if err != nil {
		return nil, err
	}
	begun := after > 0 // what is overwritten from now on is missed
	poll := &notify.Fibonacci{Jitter: 0.1}
	for {
		head, failed := waiter.Head(ctx) // before the read, or an entry appended in between would be missed
		entries, err := r.read(ctx, after, limit, begun)
		if err != nil || len(entries) > 0 {
			return entries, err
		}
		begun = true
		if failed == nil {
			_, failed = waiter.Wait(ctx, head, ringBound)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if failed == nil {
			continue
		}
		if _, err := r.waiter(); err != nil { // closed
			return nil, err
		}
		timer := time.NewTimer(poll.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// read reads what there is, in one statement and so from one snapshot: the entries of a
// ring are always those from the oldest to the newest, without a gap.
func (r *Ring) read(ctx context.Context, after uint64, limit int, begun bool) ([]RingEntry, error) {
	rows, err := r.db.Pool().QueryContext(ctx, "SELECT r.head, s.entry, CAST(UNIX_TIMESTAMP(s.written_at) * 1000000 AS SIGNED), s.payload FROM "+
		schema.RingTable+" r LEFT JOIN "+schema.RingSlotTable+" s FORCE INDEX (entry) ON s.ring = r.name AND s.entry > ?"+
		" WHERE r.name = ? ORDER BY s.entry LIMIT ?", after, r.name, limit)
	if err != nil {
		return nil, r.error("read", err)
	}
	defer rows.Close()
	var entries []RingEntry
	there := false
	var head uint64
	for rows.Next() {
		there = true
		var number sql.Null[uint64]
		var micros sql.NullInt64
		var e RingEntry
		if err := rows.Scan(&head, &number, &micros, &e.Payload); err != nil {
			return nil, r.error("read", err)
		}
		if !number.Valid { // the ring has nothing newer
			break
		}
		e.Number, e.WrittenAt = number.V, time.UnixMicro(micros.Int64).UTC()
		entries = append(entries, e)
	}
	if err := rows.Err(); err != nil {
		return nil, r.error("read", err)
	}
	if !there {
		return nil, r.error("read", sql.ErrNoRows)
	}
	if head < after {
		return nil, fmt.Errorf("queue: ring %q: %w: its newest is %d, and the reader has been at %d: start again",
			r.name, ErrRingShorter, head, after)
	}
	if len(entries) > 0 && begun {
		entries[0].Missed = entries[0].Number - after - 1
	}
	return entries, nil
}
