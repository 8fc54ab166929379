package waiting

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/server"
)

// ErrNoTrigger means that the table lacks a wake trigger for some change that moves the head.
var ErrNoTrigger = errors.New("the table has no wake trigger that works (mqnotify wake install makes one)")

// ErrClosed means that the listener has been closed.
var ErrClosed = errors.New("the waiter was closed")

const (
	// impossible is the pause after a lasting error.
	impossible = 30 * time.Second
	// parting is how long a statement may continue after its session is closed. A loaded server needs that long to accept the helper's
	// connection and its KILL, without which a wait for a GTID would continue in the server for up to a minute.
	parting = 500 * time.Millisecond
)

// Topic is what a listener waits for.
type Topic struct {
	// Table determines the gate. Its wake trigger sends the hints.
	Table string
	// Head is a query of one number, or NULL. Every hint may run it.
	Head string
	Args []any
	// CommitWait is a statement with one argument, an id. It waits for the commit of the row with the largest id above the
	// argument, and returns that id, or no row. It is a locking read by id = ..., without an aggregate: if a rollback removes
	// the row that MAX(id) waits for, the server keeps a lock of the gap and waits for the next row, and a writer gets a
	// deadlock. Empty means no commit wait; this is for rows that are claimed.
	CommitWait string
	// Events are the changes of the table that move the head. Zero means Insert. A topic whose table lacks
	// a trigger for one of them is polled.
	Events Events
}

// Events are changes of a table. They can be combined with |.
type Events uint8

// The changes of a table that can have a trigger.
const (
	Insert Events = 1 << iota
	Update
	Delete
)

// event maps the server's name of an event to the change.
var event = map[string]Events{"INSERT": Insert, "UPDATE": Update, "DELETE": Delete}

// Head is the state of a topic that a listener saw. Heads are only compared for equality.
type Head struct{ sql.Null[uint64] }

// Value returns the number, or false if there is none yet.
func (h Head) Value() (uint64, bool) { return h.V, h.Valid }

// Waiting waits for topics of one database. It connects when the first listener is made and disconnects when the last
// one is closed. Safe for concurrent use.
type Waiting struct {
	config     *mysql.Config
	log        *slog.Logger
	leaderWait time.Duration

	mu      sync.Mutex
	users   int
	process *process
}

// New returns a Waiting for the database of the configuration. It does not connect.
func New(config *mysql.Config, log *slog.Logger) *Waiting {
	return &Waiting{config: config.Clone(), log: log, leaderWait: leaderWait}
}

// process is the sessions and goroutines that exist while there are listeners.
type process struct {
	config     *mysql.Config
	log        *slog.Logger
	leaderWait time.Duration
	helper     *helper
	poller     *poller

	cancel  []context.CancelFunc // of the poller and the gates
	waiters sync.WaitGroup       // the poller and the gates

	// pin is the name of the lock that the process's leaders wait for and never get, because the poller's session holds it.
	pin    atomic.Pointer[string]
	pinned chan struct{} // closed when the poller holds it for the first time

	hints     [allGates]atomic.Bool
	lacking   chan struct{} // has a value when a topic lacks a working trigger; capacity 1
	lacks     atomic.Bool   // a topic lacks a working trigger
	noRoutine atomic.Bool   // the account can't call the routines
	commits   atomic.Bool   // every commit on the server is a hint
	news      chan struct{} // has a value when a hint or a topic has come; capacity 1

	gates [allGates]*gate // under Waiting.mu
}

// Listen returns a listener for the topic. The caller closes it.
func (w *Waiting) Listen(t Topic) *Listener {
	t.Events = cmp.Or(t.Events, Insert)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.users++; w.users == 1 {
		w.process = newProcess(w.config, w.log, w.leaderWait)
	}
	return &Listener{waiting: w, topic: w.process.join(t), closed: make(chan struct{})}
}

// leave removes a listener. After the last one it returns when all goroutines have ended.
func (w *Waiting) leave(t *topic) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.process.poller.leave(t)
	if w.users--; w.users == 0 {
		w.process.end()
		w.process = nil
	}
}

func newProcess(config *mysql.Config, log *slog.Logger, leaderWait time.Duration) *process {
	p := &process{config: config, log: log, leaderWait: leaderWait, news: make(chan struct{}, 1),
		lacking: make(chan struct{}, 1), helper: newHelper(config),
		pinned: make(chan struct{})}
	p.poller = newPoller(p)
	p.start(p.poller.run)
	p.start(p.follow)
	return p
}

// start runs f until the process ends.
func (p *process) start(f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = append(p.cancel, cancel)
	p.waiters.Go(func() { f(ctx) })
}

// join adds a user of the topic, and a session in its gate if there is none.
func (p *process) join(t Topic) *topic {
	number := Gate(t.Table)
	if p.gates[number] == nil {
		g := &gate{process: p, number: number, names: namesOf(p.config.DBName, number), table: t.Table, again: make(chan struct{}, 1)}
		p.gates[number] = g
		p.start(g.stay)
	}
	topic := p.poller.join(t, p.gates[number])
	p.hint(number)
	return topic
}

// end returns when all goroutines have ended. The helper ends last, because it ends the waits of the others.
func (p *process) end() {
	for _, cancel := range p.cancel {
		cancel()
	}
	p.waiters.Wait()
	p.helper.close()
}

// hint makes the poller check the topics of the gate.
func (p *process) hint(gate int) {
	p.hints[gate].Store(true)
	poke(p.news)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// The pauses before each KILL of endWith. If a KILL arrives at the moment when a statement opens a table, MariaDB leaves the
// table's triggers broken for every writer (error 1064), until FLUSH TABLES. Sessions that read tables therefore have a pause that is
// much longer than that moment.
const (
	noTables = 5 * time.Millisecond
	opened   = 50 * time.Millisecond
)

// endWith ends the statement that the session runs when ctx ends, with a KILL after each pause. The caller calls stop when
// it no longer needs the session.
func (p *process) endWith(ctx context.Context, s *session, each time.Duration) (stop func()) {
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		cut := time.AfterFunc(parting, s.cut)
		defer cut.Stop()
		for !s.over.Load() && !s.isCut.Load() {
			_ = server.Pause(context.WithoutCancel(ctx), each) // most sessions end by themselves
			_ = p.helper.kill(context.WithoutCancel(ctx), s)   // repeated, because a KILL may arrive before the statement
		}
	})
	return func() {
		s.over.Store(true)
		if !cancel() {
			<-ended
		}
	}
}

// lasting is an error that a new connection would probably meet again.
type lasting string

func (e lasting) Error() string { return string(e) }

// keep calls f repeatedly until ctx ends, with growing pauses in between. again ends a pause.
func keep(ctx context.Context, again <-chan struct{}, f func() error) {
	waits := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0),
	)
	for ctx.Err() == nil {
		begun := time.Now()
		err := f()
		if err == nil || time.Since(begun) > time.Second {
			waits.Reset()
		}
		wait := waits.NextBackOff()
		if errors.As(err, new(lasting)) || NoRoutine(err) {
			wait = impossible
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-again:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}
