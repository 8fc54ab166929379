package queue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
	schema "github.com/mqnotify/mqnotify/sql"
)

const maxName = 64 // characters

// Settings are what all who use a queue must agree on. They are stored with it.
type Settings struct {
	// Ordered gives out one task at a time, in the order of entry, and the next when
	// the one before is done or dead. To enter one then locks the queue until the
	// commit, so that the order of entry is that of the commits.
	Ordered bool
}

// Create makes a queue, whose tables Init of the schema has made. One that is there
// already stays as it is; it is an error if its settings are others.
func Create(ctx context.Context, db *notify.DB, name string, settings Settings) error {
	if err := checkName("the queue's name", name, maxName); err != nil {
		return err
	}
	_, err := db.Pool().ExecContext(ctx,
		"INSERT INTO "+schema.QueueTable+" (name, ordered) VALUES (?, ?)", name, settings.Ordered)
	if err != nil && !server.Is(err, server.ErrDuplicate) {
		return fmt.Errorf("queue: make queue %q: %w", name, explain(err))
	}
	is, err := readSettings(ctx, db.Pool(), name, "")
	if err != nil {
		return err
	}
	if is != settings {
		kind := "ordered"
		if !is.Ordered {
			kind = "not ordered"
		}
		return optionsf("the queue %q is there already, and is %s: use it so, or choose another name", name, kind)
	}
	return nil
}

// readSettings reads the queue's row, and locks it if lock says so.
func readSettings(ctx context.Context, db rowQueryer, name, lock string) (s Settings, err error) {
	row := db.QueryRowContext(ctx, "SELECT ordered FROM "+schema.QueueTable+" WHERE name = ?"+lock, name)
	switch err := row.Scan(&s.Ordered); {
	case errors.Is(err, sql.ErrNoRows):
		return s, fmt.Errorf("queue: %q: %w: make it with `mqnotify init --queue NAME`", name, ErrNoQueue)
	case err != nil:
		return s, fmt.Errorf("queue: look for queue %q: %w", name, explain(err))
	}
	return s, nil
}

type rowQueryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Options of a Queue. The zero value is ready for use.
type Options struct {
	// Gate are the settings of the queue's gate, through which workers are woken. The
	// zero value has the defaults.
	Gate notify.GateOptions
	// NoGate keeps Enqueue from waking workers: they find tasks when they look.
	NoGate bool
	// Logger gets what no caller is told. nil means slog.Default().
	Logger *slog.Logger
}

// Queue enters tasks, in its callers' goroutines and over the pool of the DB. Once it
// has joined the queue's gate it has a connection and goroutines of its own for that,
// until Close. Safe for concurrent use.
type Queue struct {
	db       *notify.DB
	name     string
	log      *slog.Logger
	gate     *notify.Gate // nil with NoGate
	options  Options
	settings atomic.Pointer[Settings] // nil until asked for
	first    atomic.Int64             // when the first tasks were entered, in Unix nanoseconds
	closed   atomic.Bool
}

// New is access to a queue of the DB's database. It does not connect; the caller
// keeps and closes the DB.
func New(db *notify.DB, name string, options Options) (*Queue, error) {
	if err := checkName("the queue's name", name, maxName); err != nil {
		return nil, err
	}
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	q := &Queue{db: db, name: name, options: options, log: options.Logger.With("queue", name)}
	if options.Gate.Logger == nil {
		q.options.Gate.Logger = q.log
	}
	if !options.NoGate {
		q.gate = notify.NewGate(db, q.topic(), q.options.Gate)
	}
	return q, nil
}

// topic is the name of the queue's gate, and of its flag. No table has it: the
// keeper looks at the flag alone.
func (q *Queue) topic() string { return "queue/" + q.name }

// Name is the queue's name.
func (q *Queue) Name() string { return q.name }

// Settings are the queue's, read once. The error is ErrNoQueue when it does not exist.
func (q *Queue) Settings(ctx context.Context) (Settings, error) {
	return q.settingsOver(ctx, q.db.Pool())
}

func (q *Queue) settingsOver(ctx context.Context, db rowQueryer) (Settings, error) {
	if s := q.settings.Load(); s != nil {
		return *s, nil
	}
	s, err := readSettings(ctx, db, q.name, "")
	if err != nil {
		return s, err
	}
	q.settings.Store(&s)
	return s, nil
}

// Join joins the queue's gate now, and returns when every ring will wake its workers
// at once; see [notify.Gate.Join]. Without it the Queue joins by itself when tasks are
// entered a second after the first.
func (q *Queue) Join(ctx context.Context) error {
	if q.closed.Load() {
		return q.error("join the gate", ErrClosed)
	}
	if q.gate == nil {
		return nil
	}
	return q.error("join the gate", q.gate.Join(ctx))
}

const (
	// joinAfter is how long after its first tasks a Queue counts as one that lives: a
	// shorter life is not worth a connection.
	joinAfter = time.Second
	// hintPatience is how long the setting of a flag is waited for at most.
	hintPatience = 5 * time.Second
)

// Notify wakes the queue's workers. Call it after the commit of a transaction in which
// EnqueueTx entered tasks; Enqueue does it itself. It waits for no worker. While it is not
// certain that the gate's keeper hears this Queue ([notify.Gate.Heard]) it sets the queue's
// flag, which the keeper looks at, within a second; a failure to do so is logged.
func (q *Queue) Notify(ctx context.Context) {
	if q.gate == nil || q.closed.Load() {
		return
	}
	if ring(q.gate, q.lives()) {
		return
	}
	// What it tells of is done: that ctx has ended since is no reason for workers not to learn of it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hintPatience)
	defer cancel()
	if err := q.flag().Set(ctx, q.db.Pool()); err != nil {
		q.log.WarnContext(ctx, "the queue's flag is not set: workers find the tasks by themselves, later", "error", err)
	}
}

func (q *Queue) flag() notify.Flag { return notify.Flag{Topic: q.topic()} }

// ring rings the gate if it was joined, or is to be, and tells whether that does: no table
// has a queue's gate, so that nobody would find by looking what a Close cuts off.
func ring(gate *notify.Gate, joins bool) bool {
	if !joins && !gate.Joined() {
		return false
	}
	gate.Ring(0)
	return gate.Heard()
}

// lives tells whether tasks were entered long enough ago to join the gate.
func (q *Queue) lives() bool {
	now := time.Now().UnixNano()
	return !q.first.CompareAndSwap(0, now) && now-q.first.Load() >= int64(joinAfter)
}

// Close leaves the queue's gate; entering tasks fails with ErrClosed after it. It may
// be called twice, and leaves the DB open.
func (q *Queue) Close() error {
	q.closed.Store(true)
	if q.gate == nil {
		return nil
	}
	return q.gate.Close()
}

// error says what was to be done with which queue.
func (q *Queue) error(what string, err error) error {
	if err == nil || errors.Is(err, ErrOptions) || errors.Is(err, ErrNoQueue) {
		return err
	}
	return fmt.Errorf("queue: %s %q: %w", what, q.name, explain(err))
}

// badText says what is wrong with a text that is stored, empty for nothing.
func badText(text string, most int) string {
	switch {
	case text == "":
		return "it is empty; give one"
	case !utf8.ValidString(text):
		return "it is not valid UTF-8; encode it, in hexadecimal for instance"
	case strings.ContainsRune(text, 0):
		return "it has a NUL character; remove it"
	case utf8.RuneCountInString(text) > most:
		return fmt.Sprintf("it has %d characters, and %d is the most; shorten it", utf8.RuneCountInString(text), most)
	case strings.TrimSpace(text) != text:
		return "it begins or ends with a space; remove it"
	}
	return ""
}
