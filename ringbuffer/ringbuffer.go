// Package ringbuffer keeps the newest entries of a stream, a fixed number of them, in a table that never grows: a new entry
// overwrites the oldest. Writers never wait for readers, reading removes nothing, and nothing needs to be deleted. A reader that
// was overtaken learns how many entries it missed ([Entry].Missed), and continues with the oldest one.
//
// Writers append one after another, because each locks the buffer's row until its commit. Entries have consecutive numbers in
// the order of these commits, and a reader gets them in this order. A committed entry stays until it is overwritten,
// whatever is killed or disconnected.
//
// The wake trigger of mqnotify_ring, which `mqnotify init` creates, wakes readers at the commit. Without it [Buffer.Append] calls
// mqnotify_wake, and without that procedure readers poll (package notify).
//
// If all messages must be read, use a topic (producer, consumer).
package ringbuffer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/dberror"
	names "github.com/mqnotify/mqnotify/internal/name"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/notify"
)

// Errors to check with errors.Is, in addition to those of notify.
var (
	// ErrNotFound means that no ring buffer has the name: [Create] creates one, and so does `mqnotify ring create NAME`.
	ErrNotFound = errors.New("does not exist")
	// ErrShorter means that the buffer ends before the reader's position: the buffer was deleted and created again, or
	// the server has lost committed entries.
	ErrShorter = errors.New("the ring has fewer entries than were read")
)

const (
	// maxSize is the largest buffer, in entries.
	maxSize = 10_000_000
	// maxName is the longest name, in characters.
	maxName = 64
)

// Create creates a ring buffer of size entries, 1 to 10,000,000. It keeps an existing one; if its size differs,
// the error is notify.ErrOptions. The name has 1 to 64 characters. Other errors are notify.ErrNoState, notify.ErrDenied,
// notify.ErrReadOnly and the server's.
func Create(ctx context.Context, db *notify.DB, name string, size int) error {
	if err := checkName(name); err != nil {
		return err
	}
	if size < 1 || size > maxSize {
		return optionsf("the ring %q of %d entries: from 1 to %d", name, size, maxSize)
	}
	_, err := db.Pool().ExecContext(ctx, "INSERT INTO "+schema.RingTable+" (name, size) VALUES (?, ?)", name, size)
	if err != nil && !server.Is(err, server.ErrDuplicate) {
		return fmt.Errorf("ringbuffer: make %q: %w", name, explain(err))
	}
	var is int
	if err := db.Pool().GetContext(ctx, &is, "SELECT size FROM "+schema.RingTable+" WHERE name = ?", name); err != nil {
		return fmt.Errorf("ringbuffer: make %q: %w", name, explain(err))
	}
	if is != size {
		return optionsf("the ring %q already exists, with %d entries: use it as it is, or choose another name", name, is)
	}
	return nil
}

// checkName returns an error if the name of a buffer is invalid.
func checkName(name string) error {
	if problem := names.Problem(name, maxName); problem != "" {
		return optionsf("the ring's name %.80q: %s", name, problem)
	}
	return nil
}

func optionsf(format string, args ...any) error {
	return fmt.Errorf("ringbuffer: %w: %w", notify.ErrOptions, fmt.Errorf(format, args...))
}

func explain(err error) error { return dberror.Explain(err, "entry", "ring") }

// Buffer is access to a ring buffer. Safe for concurrent use.
type Buffer struct {
	db    *notify.DB
	name  string
	waker *core.Waker

	mu     sync.Mutex
	closed bool
	auto   *core.Auto // the readers'; nil before the first read
}

// Open returns access to a ring buffer. It does not connect; the first use finds out whether the buffer exists.
// The caller closes it, and the DB after it. The error is notify.ErrOptions.
func Open(db *notify.DB, name string) (*Buffer, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return &Buffer{db: db, name: name, waker: core.NewWaker(db, schema.RingTable, waiting.Update, slog.Default())}, nil
}

// Close makes Append and Read fail with notify.ErrClosed. It may be called twice.
func (b *Buffer) Close() error {
	b.mu.Lock()
	auto := b.auto
	b.closed, b.auto = true, nil
	b.mu.Unlock()
	if auto != nil {
		_ = auto.Close()
	}
	return b.waker.Close()
}

// waiter returns the waiter that all readers share.
func (b *Buffer) waiter() (*core.Auto, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, b.error("read", notify.ErrClosed)
	}
	if b.auto == nil {
		b.auto = core.NewAuto(b.db, core.Query("SELECT head FROM "+schema.RingTable+" WHERE name = ?", b.name).
			Of(schema.RingTable, waiting.Update), core.AutoOptions{Logger: slog.New(slog.DiscardHandler)})
	}
	return b.auto, nil
}

func (b *Buffer) error(what string, err error) error {
	if err == nil || errors.Is(err, notify.ErrOptions) {
		return err
	}
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("ringbuffer: the ring %q %w: make it with `mqnotify ring create NAME --size N`, in Go ringbuffer.Create", b.name, ErrNotFound)
	}
	return fmt.Errorf("ringbuffer: %s %q: %w", what, b.name, explain(err))
}

// Append appends entries, all or none, in their order, wakes readers, and returns the number of the last one. The first entry of a
// buffer has the number 1. Append tries again after a deadlock. The errors are notify.ErrUnknown if the connection was lost and the
// commit may have happened, ErrNotFound, notify.ErrOptions for more entries at once than the buffer's size, a
// *notify.TooLargeError, notify.ErrDenied, notify.ErrReadOnly, notify.ErrClosed, the error or the cause of ctx, and the server's.
func (b *Buffer) Append(ctx context.Context, payloads ...[]byte) (last uint64, err error) {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return 0, b.error("append to", notify.ErrClosed)
	}
	if len(payloads) == 0 {
		return 0, nil
	}
	err = server.Again(ctx, server.Retryable, func() error {
		last, err = b.append(ctx, payloads)
		return err
	})
	if err != nil {
		return 0, b.error("append to", err)
	}
	b.waker.Wake()
	return last, nil
}

func (b *Buffer) append(ctx context.Context, payloads [][]byte) (last uint64, err error) {
	tx, err := b.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	// The buffer's row stays locked until the commit, so writers append one after another.
	var size, head uint64
	var packet int
	if err := tx.QueryRowContext(ctx, "SELECT size, head, @@max_allowed_packet FROM "+schema.RingTable+" WHERE name = ? FOR UPDATE", b.name).
		Scan(&size, &head, &packet); err != nil {
		return 0, err
	}
	if uint64(len(payloads)) > size {
		return 0, optionsf("%d entries at once: append %d at most, or the last would overwrite the first of them", len(payloads), size)
	}
	const around = 256 // more bytes than surround the values of a row or of a statement
	// The limit of a statement, in bytes. It stays far below the driver's own limit, which a DSN may lower.
	most := min(packet, 8<<20) - around
	for done := 0; done < len(payloads); {
		bytes := 0 // of the statement, with every byte escaped
		var values []string
		var args []any
		for ; done < len(payloads) && len(values) < 500; done++ {
			payload := payloads[done]
			if payload == nil {
				payload = []byte{}
			}
			row := 2*(len(payload)+len(b.name)) + around
			if len(payload)+len(b.name)+around > packet {
				return 0, &notify.TooLargeError{What: "entry", Index: done, Size: len(payload) + len(b.name) + around, Limit: packet}
			}
			if bytes > 0 && bytes+row > most {
				break
			}
			head++
			values = append(values, "(?, ?, ?, ?)")
			args = append(args, b.name, head%size, head, payload)
			bytes += row
		}
		query := "REPLACE INTO " + schema.RingSlotTable + " (ring, slot, entry, payload) VALUES " + strings.Join(values, ", ")
		if err := write(ctx, tx, query, args, bytes > most); err != nil {
			return 0, fmt.Errorf("write: %w", err)
		}
	}
	if _, err := tx.ExecContext(ctx, "UPDATE "+schema.RingTable+" SET head = ? WHERE name = ?", head, b.name); err != nil {
		return 0, fmt.Errorf("write: %w", err)
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return head, dberror.Unknown(tx.Commit())
}

// write runs a statement. Prepared, its arguments are sent as they are; otherwise they are escaped, and the statement is one round trip.
func write(ctx context.Context, tx *sqlx.Tx, query string, args []any, prepared bool) error {
	if !prepared {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}
	stmt, err := tx.PrepareContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = stmt.Close() }()
	_, err = stmt.ExecContext(ctx, args...)
	return err
}

// Entry is an entry of a buffer.
type Entry struct {
	Number    uint64 // consecutive, from 1
	WrittenAt time.Time
	Payload   []byte
	// Missed is how many entries directly before this one were overwritten before this reader read them. A larger buffer, or a
	// faster reader, would have them.
	Missed uint64
}

// Head returns the number of the newest entry, or 0 if there is none, and the size of the buffer in entries. The
// errors are those of Read.
func (b *Buffer) Head(ctx context.Context) (head uint64, size int, err error) {
	err = b.db.Pool().QueryRowContext(ctx, "SELECT head, size FROM "+schema.RingTable+" WHERE name = ?", b.name).Scan(&head, &size)
	return head, size, b.error("read", err)
}

// readBound is how often a reader polls without a hint.
const readBound = 10 * time.Second

// Read waits until there are entries with numbers above after, and returns at most limit of them, in their order. Reading
// removes nothing. A reader passes the number of the last entry that it has, or the result of Head to get only later ones. 0 means
// from the oldest entry; entries that were overwritten before the call then do not count as missed.
//
// The errors are ErrNotFound, ErrShorter, notify.ErrOptions, notify.ErrClosed, the error or the cause of ctx, and the server's. After
// an error of the server, Read may be called again.
func (b *Buffer) Read(ctx context.Context, after uint64, limit int) ([]Entry, error) {
	if limit < 1 {
		return nil, optionsf("a limit of %d entries: 1 or more", limit)
	}
	waiter, err := b.waiter()
	if err != nil {
		return nil, err
	}
	begun := after > 0 // entries that are overwritten from now on count as missed
	poll := &notify.Fibonacci{Jitter: 0.1}
	for {
		head, failed := waiter.Head(ctx) // before the read, so that an entry that is appended in between ends the wait
		entries, hole, err := b.read(ctx, after, limit, begun)
		if err != nil || len(entries) > 0 {
			return entries, err
		}
		if !hole {
			begun = true
			if failed == nil {
				_, failed = waiter.Wait(ctx, head, readBound)
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if failed == nil {
				continue
			}
			if _, err := b.waiter(); err != nil { // closed
				return nil, err
			}
		}
		if server.Pause(ctx, poll.NextBackOff()) != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// read reads the existing entries, in one statement and so in one snapshot. The entries of a buffer are always those from the oldest
// to the newest, without a gap. A snapshot may still show a hole: under load MariaDB was seen to show a later transaction and not
// the one before it (TestRingProcesses). Then read returns only the entries before the hole, and hole is true.
func (b *Buffer) read(ctx context.Context, after uint64, limit int, begun bool) (entries []Entry, hole bool, err error) {
	rows, err := b.db.Pool().QueryContext(ctx, "SELECT r.head, r.size, s.entry, CAST(UNIX_TIMESTAMP(s.written_at) * 1000000 AS SIGNED), s.payload FROM "+
		schema.RingTable+" r LEFT JOIN "+schema.RingSlotTable+" s FORCE INDEX (entry) ON s.ring = r.name AND s.entry > ?"+
		" WHERE r.name = ? ORDER BY s.entry LIMIT ?", after, b.name, limit)
	if err != nil {
		return nil, false, b.error("read", err)
	}
	defer rows.Close()
	there := false
	var head, size uint64
	for rows.Next() {
		there = true
		var number sql.Null[uint64]
		var micros sql.NullInt64
		var e Entry
		if err := rows.Scan(&head, &size, &number, &micros, &e.Payload); err != nil {
			return nil, false, b.error("read", err)
		}
		if !number.Valid { // the buffer has nothing newer
			break
		}
		next := after + 1
		if len(entries) > 0 {
			next = entries[len(entries)-1].Number + 1
		} else if head > size {
			next = max(next, head-size+1) // the oldest; those before it were overwritten
		}
		if hole = number.V > next; hole {
			break
		}
		e.Number, e.WrittenAt = number.V, time.UnixMicro(micros.Int64).UTC()
		entries = append(entries, e)
	}
	if err := rows.Err(); err != nil {
		return nil, false, b.error("read", err)
	}
	if !there {
		return nil, false, b.error("read", sql.ErrNoRows)
	}
	if head < after {
		return nil, false, fmt.Errorf("ringbuffer: %q: %w: its newest is %d, and the reader has been at %d: start again",
			b.name, ErrShorter, head, after)
	}
	if len(entries) > 0 && begun {
		entries[0].Missed = entries[0].Number - after - 1
	}
	return entries, hole, nil
}
