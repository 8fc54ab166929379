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
		err = fmt.Errorf("%w: make it with `mqnotify ring create NAME --size N`, in Go CreateRing", ErrNoRing)
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
}

// Reader reads a ring's entries. Any number of readers may read the same ring: reading takes
// nothing away. A Reader serves one goroutine.
type Reader struct {
	ring  *Ring
	next  uint64
	begun bool // what is overwritten from now on is missed
	poll  *notify.Fibonacci
}

// Reader returns a reader that begins after the entry with the number: 0 begins with the oldest
// entry, and Head's answer with the next new one. Entries that were overwritten before the first
// Next count as missed only if after is not 0.
func (r *Ring) Reader(after uint64) *Reader {
	return &Reader{ring: r, next: after + 1, begun: after > 0, poll: &notify.Fibonacci{Jitter: 0.1}}
}

// Head is the number of the newest entry, 0 if there is none.
func (r *Ring) Head(ctx context.Context) (head uint64, err error) {
	err = r.db.Pool().GetContext(ctx, &head, "SELECT head FROM "+schema.RingTable+" WHERE name = ?", r.name)
	return head, r.error("read", err)
}

// Size is how many entries the ring keeps.
func (r *Ring) Size(ctx context.Context) (size int, err error) {
	err = r.db.Pool().GetContext(ctx, &size, "SELECT size FROM "+schema.RingTable+" WHERE name = ?", r.name)
	return size, r.error("read", err)
}

// ringBound is how often a reader looks when no hint wakes it.
const ringBound = 10 * time.Second

// Next waits until there are entries, and returns at most limit of them, in their order.
// A [*LappedError] says that entries were overwritten before they were read; the Next
// after it goes on with the oldest that is left. Other errors: ErrNoRing, ErrRingShorter, notify.ErrOptions,
// the cause of ctx, and the server's, after which Next may be called again.
func (r *Reader) Next(ctx context.Context, limit int) ([]RingEntry, error) {
	if limit < 1 {
		return nil, optionsf("a limit of %d entries: 1 or more", limit)
	}
	waiter, err := r.ring.waiter()
	if err != nil {
		return nil, err
	}
	for {
		head, failed := waiter.Head(ctx) // before the read, or an entry appended in between would be missed
		entries, err := r.read(ctx, limit)
		if err != nil || len(entries) > 0 {
			return entries, err
		}
		if failed == nil {
			_, failed = waiter.Wait(ctx, head, ringBound)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if failed == nil {
			continue
		}
		if _, err := r.ring.waiter(); err != nil { // closed
			return nil, err
		}
		timer := time.NewTimer(r.poll.NextBackOff())
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
func (r *Reader) read(ctx context.Context, limit int) ([]RingEntry, error) {
	rows, err := r.ring.db.Pool().QueryContext(ctx, "SELECT r.head, s.entry, CAST(UNIX_TIMESTAMP(s.written_at) * 1000000 AS SIGNED), s.payload FROM "+
		schema.RingTable+" r LEFT JOIN "+schema.RingSlotTable+" s FORCE INDEX (entry) ON s.ring = r.name AND s.entry >= ?"+
		" WHERE r.name = ? ORDER BY s.entry LIMIT ?", r.next, r.ring.name, limit)
	if err != nil {
		return nil, r.ring.error("read", err)
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
			return nil, r.ring.error("read", err)
		}
		if !number.Valid { // the ring has nothing newer
			break
		}
		e.Number, e.WrittenAt = number.V, time.UnixMicro(micros.Int64).UTC()
		entries = append(entries, e)
	}
	if err := rows.Err(); err != nil {
		return nil, r.ring.error("read", err)
	}
	if !there {
		return nil, r.ring.error("read", sql.ErrNoRows)
	}
	if head+1 < r.next {
		return nil, fmt.Errorf("queue: ring %q: %w: its newest is %d, and the reader has been at %d: start again",
			r.ring.name, ErrRingShorter, head, r.next-1)
	}
	begun := r.begun
	r.begun = true
	if len(entries) == 0 {
		return nil, nil
	}
	first := entries[0].Number
	if first > r.next && begun {
		missed := first - r.next
		r.next = first
		return nil, &LappedError{Ring: r.ring.name, Missed: missed}
	}
	r.poll.Reset()
	r.next = entries[len(entries)-1].Number + 1
	return entries, nil
}
