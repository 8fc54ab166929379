package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/internal/server"
)

// AutoOptions are the settings of an Auto.
type AutoOptions struct {
	// Gate are those of the gate.
	Gate GateOptions
	// Poll are the waits when it polls; nil means Fibonacci from 10 ms to 1 s.
	Poll backoff.BackOff
	// Again is how long it waits, after it moved down, before it tries a better way
	// again; the wait doubles up to ten times as long. 0 means 1 minute. After a lost
	// connection it tries again in a second, at the latest.
	Again time.Duration
	// Logger gets a line when a way is chosen, and why the better ones are not; nil
	// means slog.Default().
	Logger *slog.Logger
}

// trial is how long a better way may take to begin.
const trial = 5 * time.Second

// soon is when a way is tried again of which only a connection was lost: that says nothing
// against it. It is also how often a trial under way is looked after.
const soon = time.Second

// Auto is the waiter that takes the best way that works: the table's wake trigger, the gate, GTIDs, polling.
// When the one it has stops working (a lock lost to a proxy, a server that became
// read-only, GTIDs switched off) it takes the next, and tries again later whether
// a better one works. Each move ends a Wait, so that nothing is missed in between.
type Auto struct {
	db      *DB
	session *Session
	topic   string
	source  Source
	options AutoOptions
	carries Piggyback
	log     *slog.Logger
	again   backoff.BackOff
	once    sync.Once
	err     error // of Close

	mu     sync.Mutex
	closed bool
	way    int // into ways
	waiter Waiter
	why    []string // the better ways don't work
	retry  time.Time
	better chan better // the answer of a trial under way
	stop   func()      // ends it
	trials sync.WaitGroup
}

var _ Carrier = (*Auto)(nil)

// ways are what Auto has, the best first. The last always works.
var ways = [...]struct {
	name string
	open func(a *Auto, ctx context.Context) (Waiter, error)
}{
	{"trigger", (*Auto).trigger},
	{"gate", (*Auto).gate},
	{"gtid", (*Auto).gtid},
	{"poll", (*Auto).poll},
}

// better is what became of the trial of a better way.
type better struct {
	way    int
	waiter Waiter
	why    []string
	lost   bool // a connection was, in one that is better still
}

// NewAuto is the best waiter for a topic, whose head is seen in source. It polls over
// session, which stays the caller's and may be used for other statements; for the
// other ways it has connections of its own (see Gate and GTID).
func NewAuto(db *DB, session *Session, topic string, source Source, options AutoOptions) *Auto {
	options.Again = cmp.Or(options.Again, time.Minute)
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	if options.Gate.Logger == nil {
		options.Gate.Logger = options.Logger
	}
	return &Auto{
		db: db, session: session, topic: topic, source: source, options: options,
		log: options.Logger, again: Exponential(options.Again, 10*options.Again), stop: func() {},
	}
}

// errNotWoken is the error of the way trigger on a table without one. It needs no mention where the gate works.
var errNotWoken = errors.New("no wake trigger")

func (a *Auto) trigger(ctx context.Context) (Waiter, error) {
	if a.source.commitWait == "" || locksReach(a.session.Capabilities()) != nil {
		return nil, errNotWoken
	}
	hasTrigger, err := a.db.hasWakeTrigger(ctx, a.source.table)
	if err != nil {
		return nil, err
	}
	if !hasTrigger {
		return nil, errNotWoken
	}
	return newWoken(ctx, a.db, a.source)
}

func (a *Auto) gate(ctx context.Context) (Waiter, error) {
	if a.source.take != "" {
		return nil, noGatef("a flag's row that its reader deletes is to be looked at")
	}
	gate := NewGate(a.db, a.topic, a.options.Gate)
	if _, err := gate.Head(ctx); err != nil {
		_ = gate.Close()
		return nil, err
	}
	return gate, nil
}

func (a *Auto) gtid(ctx context.Context) (Waiter, error) {
	session, err := a.db.Session(ctx, SessionOptions{IdleTimeout: untouched})
	if err != nil {
		return nil, err
	}
	waiter := NewGTID(a.db, session, a.source)
	if _, err := waiter.Head(ctx); err != nil {
		_ = waiter.Close()
		return nil, err
	}
	return waiter, nil
}

func (a *Auto) poll(context.Context) (Waiter, error) {
	return NewPoll(a.session, a.source, a.options.Poll), nil
}

// Mode is the way that it waits now: trigger (the table's wake trigger), gate, gtid or poll; empty before the first
// Head. Why tells why not in a better one, empty for the best.
func (a *Auto) Mode() (mode, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiter == nil {
		return "", ""
	}
	return ways[a.way].name, strings.Join(a.why, "; ")
}

// Head implements [Waiter].
func (a *Auto) Head(ctx context.Context) (Head, error) {
	waiter, err := a.current(ctx)
	if err != nil {
		return Head{}, err
	}
	head, err := waiter.Head(ctx)
	if err != nil && a.fails(ctx) {
		return a.down(ctx, err)
	}
	return head, err
}

// Wait implements [Waiter].
func (a *Auto) Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error) {
	waiter, err := a.current(ctx)
	if err != nil {
		return seen, err
	}
	for deadline := time.Now().Add(bound); ; {
		if up, moved := a.up(ctx); moved {
			return up.Head(ctx)
		}
		left, due := max(0, time.Until(deadline)), a.due()
		head, err := waiter.Wait(ctx, seen, min(left, due))
		switch {
		case err != nil && a.fails(ctx):
			return a.down(ctx, err)
		// What its reader takes may be news though it looks the same.
		case err != nil || left <= due || head != seen || a.source.take != "":
			return head, err
		}
	}
}

// due is how long it takes until a better way is to be tried, or a trial to be looked after.
func (a *Auto) due() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.way == 0 && a.better == nil:
		return math.MaxInt64
	case a.better != nil:
		return soon
	}
	return max(0, time.Until(a.retry))
}

// Carry implements [Carrier].
func (a *Auto) Carry(p Piggyback) { a.carries = p }

// fails tells whether an error is that of a way, and not of the caller's session or
// context, or a Close.
func (a *Auto) fails(ctx context.Context) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return ctx.Err() == nil && !a.closed && a.session.Err() == nil && a.way < len(ways)-1
}

// current is the waiter, the best that works when there is none yet.
func (a *Auto) current(ctx context.Context) (Waiter, error) {
	a.mu.Lock()
	waiter, closed := a.waiter, a.closed
	a.mu.Unlock()
	if waiter != nil || closed {
		return waiter, closedError(closed)
	}
	var found better
	if err := a.find(ctx, &found, 0, len(ways)); err != nil {
		return nil, err
	}
	return found.waiter, a.move(ctx, found)
}

// skips is the last way that needs no trial after a failure: what is read-only has its
// writers elsewhere, and behind a proxy that shares sessions no statement can be
// interrupted by the number of its session.
func skips(failure error) int {
	if errors.Is(failure, errShared) || errors.Is(failure, errReadOnly) {
		return len(ways) - 2
	}
	return 0
}

// because tells why a way is not taken.
func because(way int, err error) string {
	var none noGateError
	switch {
	case errors.As(err, &none): // the rest says what the mode's name says
		err = none.error
	case errors.Is(err, ErrNoGTID): // it says it already
		return strings.TrimPrefix(err.Error(), "notify: ")
	}
	return fmt.Sprintf("no %s: %v", ways[way].name, err)
}

func closedError(closed bool) error {
	if closed {
		return errClosed
	}
	return nil
}

// fails notes why a way is not taken.
func (b *better) fails(way int, err error) {
	if errors.Is(err, errNotWoken) {
		return
	}
	b.why = append(b.why, because(way, err))
	b.lost = b.lost || server.ConnectionLost(err) || errors.Is(err, errEnded)
}

// find tries the ways of [from, to), the best first; without a waiter none works.
func (a *Auto) find(ctx context.Context, found *better, from, to int) error {
	for way := from; way < to; way++ {
		trying, cancel := context.WithTimeoutCause(ctx, trial, errNoAnswer)
		waiter, err := ways[way].open(a, trying)
		cancel()
		if err == nil {
			found.way, found.waiter = way, waiter
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if a.session.Err() != nil { // nothing can work
			return a.session.Err()
		}
		found.fails(way, err)
		way = max(way, skips(err))
	}
	return nil
}

// move makes what was found the waiter.
func (a *Auto) move(ctx context.Context, found better) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		_ = found.waiter.Close()
		return errClosed
	}
	if a.waiter != nil {
		_ = a.waiter.Close()
	}
	if a.carries != nil {
		_ = a.carries.Result(nil)
		if carrier, ok := found.waiter.(Carrier); ok {
			carrier.Carry(a.carries)
		}
	}
	a.waiter, a.way, a.why = found.waiter, found.way, found.why
	wait := a.again.NextBackOff()
	if found.lost {
		wait = min(wait, soon)
	}
	a.retry = time.Now().Add(wait)
	attributes := []any{"mode", ways[a.way].name}
	if len(a.why) > 0 {
		attributes = append(attributes, "why", strings.Join(a.why, "; "))
	}
	a.log.InfoContext(ctx, "waiting", attributes...)
	return nil
}

// down takes the next way that works, after the one at hand failed.
func (a *Auto) down(ctx context.Context, failure error) (Head, error) {
	a.mu.Lock()
	failed := a.way
	a.mu.Unlock()
	var found better
	found.fails(failed, failure)
	if err := a.find(ctx, &found, max(failed, skips(failure))+1, len(ways)); err != nil {
		return Head{}, err
	}
	if err := a.move(ctx, found); err != nil {
		return Head{}, err
	}
	return found.waiter.Head(ctx)
}

// up tries whether a better way works, beside the caller, when it is time, and takes
// the one that a trial has found.
func (a *Auto) up(ctx context.Context) (waiter Waiter, moved bool) {
	a.mu.Lock()
	trials := a.better
	switch {
	case a.closed || a.way == 0 && trials == nil:
		a.mu.Unlock()
		return nil, false
	case trials == nil && time.Now().After(a.retry):
		trials = make(chan better, 1)
		trying, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives this Wait
		a.better, a.stop = trials, cancel
		way := a.way
		a.trials.Go(func() {
			defer cancel()
			var found better
			_ = a.find(trying, &found, 0, way) // an error: no waiter
			trials <- found
		})
	}
	a.mu.Unlock()
	select {
	case found := <-trials:
		a.mu.Lock()
		a.better = nil
		a.retry = time.Now().Add(a.again.NextBackOff())
		a.mu.Unlock()
		if found.waiter == nil || a.move(ctx, found) != nil {
			return nil, false
		}
		a.again.Reset()
		return found.waiter, true
	default:
		return nil, false
	}
}

// Close implements [Waiter]: it leaves the session open.
func (a *Auto) Close() error {
	a.once.Do(func() { a.err = a.close() })
	return a.err
}

func (a *Auto) close() error {
	a.mu.Lock()
	a.closed = true
	waiter, trials := a.waiter, a.better
	a.stop()
	a.mu.Unlock()
	a.trials.Wait()
	if trials != nil {
		select {
		case found := <-trials:
			if found.waiter != nil {
				_ = found.waiter.Close()
			}
		default:
		}
	}
	if waiter != nil {
		return waiter.Close()
	}
	return nil
}
