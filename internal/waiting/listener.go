package waiting

import (
	"context"
	"database/sql"
	"sync"
	"time"
)

// Listener waits for one topic. It serves one goroutine at a time; Close may come from another.
type Listener struct {
	waiting *Waiting
	topic   *topic
	once    sync.Once
	closed  chan struct{}
	carries bool // the carrier of the topic is this listener's
}

// Carrier takes the rows that commit waits return, which saves a listener the reading of a row that it is woken for.
// Its methods are called by a goroutine of the package and must not block.
type Carrier interface {
	// CommitWait is the topic's CommitWait with the carrier's columns.
	CommitWait() string
	// Row reads a row. It returns the row's id, and a function that hands the row over, or nil if there may be rows
	// between after and the row. The function is called before anybody learns of the new head.
	Row(after uint64, rows *sql.Rows) (id uint64, keep func(), err error)
	// Outdate forgets what was handed over: the head has moved without it.
	Outdate()
}

// Head returns the head that the process has seen. It waits for the first one. Read it before the rows: what comes
// between the two ends the next Wait at once.
func (l *Listener) Head(ctx context.Context) (Head, error) {
	for {
		head, known, changed, err := l.topic.now()
		if l.isClosed() {
			return head, ErrClosed
		}
		if known || err != nil {
			return head, err
		}
		select {
		case <-changed:
		case <-l.closed:
			return head, ErrClosed
		case <-ctx.Done():
			return head, context.Cause(ctx)
		}
	}
}

// State reports how the listener learns of commits. by is trigger when every commit brings a hint, gtid when every commit
// on the server does, poll when the head is polled, at most once a second, and empty as long as this is not known. why says
// why the table's trigger brings no hint, and is nil when it does.
func (l *Listener) State() (by string, why error) {
	woken, _, why := l.topic.state()
	switch {
	case woken:
		return "trigger", nil
	case why == nil:
		return "", nil
	case l.topic.gate.process.commits.Load():
		return "gtid", why
	}
	return "poll", why
}

// Known returns when State is known.
func (l *Listener) Known(ctx context.Context) error {
	if err := l.Ready(ctx); err != nil {
		if by, _ := l.State(); by == "" {
			return err
		}
	}
	return nil
}

// Ready returns nil when every commit brings a hint, or why it does not. Until that is known it waits.
func (l *Listener) Ready(ctx context.Context) error {
	for {
		woken, changed, why := l.topic.state()
		if woken || why != nil {
			return why
		}
		select {
		case <-changed:
		case <-l.closed:
			return ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Wait returns when the head is another than seen, or after bound, with the head that the process saw last. Its error is
// that of a query that fails, ErrClosed, or the cause of ctx.
func (l *Listener) Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error) {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	for {
		head, known, changed, err := l.topic.now()
		if l.isClosed() {
			return seen, ErrClosed
		}
		if err != nil || known && head != seen {
			return head, err
		}
		select {
		case <-changed:
		case <-timer.C:
			return seen, nil
		case <-l.closed:
			return seen, ErrClosed
		case <-ctx.Done():
			return seen, context.Cause(ctx)
		}
	}
}

func (l *Listener) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// Carry gives the rows of commit waits to the carrier, unless the topic has one already.
func (l *Listener) Carry(c Carrier) {
	l.topic.mu.Lock()
	defer l.topic.mu.Unlock()
	if l.topic.carries == nil {
		l.topic.carries, l.carries = c, true
	}
}

// Close ends a Wait. The last listener's Close returns when nothing of the package runs any more. It may be called
// twice.
func (l *Listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.topic.mu.Lock()
		if l.carries {
			l.topic.carries = nil
		}
		l.topic.mu.Unlock()
		l.waiting.leave(l.topic)
	})
	return nil
}

// topic is what the listeners of a process for a topic share.
type topic struct {
	Topic
	gate  *gate
	users int // under poller.mu
	// The poller's own.
	noWait bool // the last commit wait failed
	above  bool // the last dirty read saw a row above the head

	mu      sync.Mutex
	head    Head
	known   bool
	err     error // of the last read
	carries Carrier
	woken   bool          // every commit brings a hint
	why     error         // it does not; nil while that is not known
	changed chan struct{} // closed when something of the above changes
}

// tell notes whether every commit brings a hint, or why not.
func (t *topic) tell(woken bool, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.woken == woken && t.why == why { //nolint:errorlint // the same one
		return
	}
	t.woken, t.why = woken, why
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *topic) state() (woken bool, changed <-chan struct{}, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.woken, t.changed, t.why
}

func (t *topic) now() (head Head, known bool, changed <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.head, t.known, t.changed, t.err
}

// set notes what a read found, and reports whether the head is new.
func (t *topic) set(head Head, err error) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		head = t.head
	}
	news = err == nil && (!t.known || head != t.head)
	if !news && (err == nil) == (t.err == nil) {
		return false
	}
	t.head, t.known, t.err = head, t.known || err == nil, err
	close(t.changed)
	t.changed = make(chan struct{})
	return news
}

// commitWait reports whether the topic's next row can be waited for.
func (t *topic) commitWait() bool {
	_, known, _, _ := t.now()
	return known && t.CommitWait != "" && !t.noWait
}

func (t *topic) carrier() Carrier {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.carries
}

func (t *topic) seen() Head {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.head
}
