package waiting

import (
	"cmp"
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"
)

// Listener waits for one topic. It serves one goroutine at a time; Close may come from another.
type Listener struct {
	waiting *Waiting
	topic   *topic
	once    sync.Once
	closed  chan struct{}
	carries *Carrier // the topic's carrier, if this listener set it
}

// Carrier keeps the rows that commit waits return, so that a listener need not read them again.
// A goroutine of the package calls its methods, which must not block.
type Carrier interface {
	// CommitWait is the topic's CommitWait with the carrier's columns.
	CommitWait() string
	// Row reads a row. It returns the row's id, and a function that hands the row over, or nil if there may be rows
	// between after and the row. The function is called before a listener can see the new head.
	Row(after uint64, rows *sql.Rows) (id uint64, keep func(), err error)
	// Outdate discards the row that was handed over, because the head has moved without it.
	Outdate()
}

// await returns the topic's state as soon as done returns true for it, or when over fires.
func (l *Listener) await(ctx context.Context, over <-chan time.Time, done func(*state) bool) (*state, error) {
	for {
		s := l.topic.state.Load()
		select {
		case <-l.closed:
			return s, ErrClosed
		default:
		}
		if done(s) {
			return s, nil
		}
		select {
		case <-s.changed:
		case <-over:
			return s, nil
		case <-l.closed:
			return s, ErrClosed
		case <-ctx.Done():
			return s, context.Cause(ctx)
		}
	}
}

// Head returns the head that the process last saw. It waits for the first one. Read it before the rows: a change between
// the two reads ends the next Wait at once.
func (l *Listener) Head(ctx context.Context) (Head, error) {
	s, err := l.await(ctx, nil, func(s *state) bool { return s.known || s.err != nil })
	return s.head, cmp.Or(err, s.err)
}

// Mode reports how the listener learns of commits: trigger if every commit brings a hint, gtid if every commit on the server
// does, poll if the head is polled, at most once a second, and empty as long as this is not known. why is the reason why the table's
// trigger brings no hint, and empty if it does.
func (l *Listener) Mode() (mode, why string) {
	s := l.topic.state.Load()
	switch {
	case s.woken:
		return "trigger", ""
	case s.why == nil:
		return "", ""
	case l.topic.gate.process.commits.Load():
		return "gtid", s.why.Error()
	}
	return "poll", s.why.Error()
}

// Ready waits until it is known whether every commit brings a hint. It returns nil if so, and the reason if not.
func (l *Listener) Ready(ctx context.Context) error {
	s, err := l.await(ctx, nil, func(s *state) bool { return s.woken || s.why != nil })
	return cmp.Or(err, s.why)
}

// Wait returns when the head differs from seen, or after bound, with the head that the process saw last. Its error is
// that of a query that fails, ErrClosed, or the cause of ctx.
func (l *Listener) Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error) {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	s, err := l.await(ctx, timer.C, func(s *state) bool { return s.err != nil || s.known && s.head != seen })
	if err != nil || !s.known {
		return seen, cmp.Or(err, s.err)
	}
	return s.head, s.err
}

// Carry passes the rows of commit waits to the carrier until Close, unless the topic already has a carrier.
func (l *Listener) Carry(c Carrier) {
	if l.topic.carries.CompareAndSwap(nil, &c) {
		l.carries = &c
	}
}

// Close ends a Wait. The last listener's Close returns when no goroutine of the package runs any more. It may be called
// twice.
func (l *Listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		if l.carries != nil {
			l.topic.carries.CompareAndSwap(l.carries, nil)
		}
		l.waiting.leave(l.topic)
	})
	return nil
}

// topic is the state that the listeners of a process share for a topic.
type topic struct {
	Topic
	gate  *gate
	users int // under poller.mu
	// The poller owns these.
	noWait  bool // the last commit wait failed
	above   bool // the last dirty read saw a row above the head
	aside   bool // it would delay the others; a goroutine of its own reads its head
	failing bool // its last query failed; it is polled regularly

	carries atomic.Pointer[Carrier]
	state   atomic.Pointer[state] // the poller changes it
}

// state is what the poller knows of a topic. It is immutable.
type state struct {
	head    Head
	known   bool
	err     error         // of the last read
	woken   bool          // every commit brings a hint
	why     error         // why not; nil while that is not known
	changed chan struct{} // closed when there is a newer state
}

func (t *topic) become(s state) {
	s.changed = make(chan struct{})
	if old := t.state.Swap(&s); old != nil {
		close(old.changed)
	}
}

// tell records whether every commit brings a hint, or why not.
func (t *topic) tell(woken bool, why error) {
	s := *t.state.Load()
	if s.woken != woken || s.why != why { //nolint:errorlint // the same one
		s.woken, s.why = woken, why
		t.become(s)
	}
}

// set records the result of a read, and reports whether the head is new.
func (t *topic) set(head Head, err error) (news bool) {
	s := *t.state.Load()
	news = err == nil && (!s.known || head != s.head)
	if news || (err == nil) != (s.err == nil) {
		if s.err = err; err == nil {
			s.head, s.known = head, true
		}
		t.become(s)
	}
	return news
}

// commitWait reports whether the poller can wait for the commit of the topic's next row.
func (t *topic) commitWait() bool { return t.state.Load().known && t.CommitWait != "" && !t.noWait }

func (t *topic) carrier() Carrier {
	if c := t.carries.Load(); c != nil {
		return *c
	}
	return nil
}
