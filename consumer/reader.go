package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

const (
	// pageBytes is the approximate maximum of a page's payload.
	pageBytes = 4 << 20
	// maxWait bounds every wait for a hint.
	maxWait = 2 * time.Minute
	// checkWait is how often a reader that finds nothing checks whether the table's ids
	// have gone back, even if the head does not move.
	checkWait = 3 * time.Minute
	// maxGapWait is the longest time between two polls of the writers while gaps are open.
	maxGapWait = time.Second
	// askLimit bounds a read of a session that no other consumer uses. It is long because a condition of the user may be slow.
	askLimit = 10 * time.Minute
	// backlogWait is added between two polls while the rows to read next are all settled.
	backlogWait = 200 * time.Millisecond
)

// batch is what the reader hands out at one time.
type batch struct {
	messages []Message
	passed   []uint64 // the ids of messages of other members
	// settled is the watermark once these messages and all earlier ones are handled.
	settled uint64
	// inOrder means that every row with a lower id was handed out or can't appear any more, so that
	// each message moves the watermark to itself.
	inOrder bool
	// handled, if not nil, is closed when this batch and all earlier ones were handled.
	handled chan struct{}
}

// errDrained ends a reader with StopAtEnd at the table's end.
var errDrained = errors.New("the end of the table")

// reader reads every row once over one connection, and hands the rows out.
type reader struct {
	rows        *rows
	origins     *origins
	retries     *retries // nil unless dead letters are retried by reading their rows
	source      source
	grace       time.Duration // how long a gap stays open after its writers have ended, if some writers can't be seen
	replication *replication
	waiter      core.Waiter
	woken       func(string) // may be nil
	wm          *watermark
	out         chan<- batch
	waiting     func(id uint64, most time.Duration)
	log         *slog.Logger

	pageRows  int
	strict    bool
	grouped   bool // the offset belongs to a group
	keyed     bool // a row that commits late is handed out before messages that were published after it
	stopAtEnd bool
	alternate bool // the waiter requires that everything is handled before it waits
	forget    bool // without gaps: for the test that shows what is lost then

	limit     int // rows of the next page; at most pageRows
	gapWaits  notify.Fibonacci
	nextPoll  time.Time     // no poll of the writers before this time
	asked     uint64        // the head when the source was first asked; 0 after its answer
	handed    uint64        // the watermark that was handed out last
	withheld  bool          // rows wait until a gap before them closes
	deferred  bool          // the last page could not be read, for example because the table was locked
	sayNext   time.Time     // when the log says so; zero while nothing is withheld
	given     time.Duration // the grace of the last poll
	end       uint64        // the head when reading began
	unchecked bool          // rows were read since the table's origin was checked
	checked   time.Time     // when the head was compared with the watermark
	warned    bool          // the warning about rows that are not read was logged
}

// run reads until ctx ends or an error occurs.
func (r *reader) run(ctx context.Context) error {
	r.wm.late = r.source.late()
	pace := r.source.pace()
	r.gapWaits = notify.Fibonacci{Min: pace + pace/8, Max: maxGapWait, Jitter: 0.1} // never shorter than pace
	if err := r.begin(ctx); err != nil {
		return err
	}
	if err := r.retry(ctx); err != nil {
		return err
	}
	// Existing rows need no waiter, which may have to wait for other sessions before it can begin.
	if _, err := r.drain(ctx); err != nil {
		return err
	}
	var head core.Head
	if !r.stopAtEnd {
		var err error
		if head, err = r.waiter.Head(ctx); err != nil {
			return err
		}
	}
	for moved := false; ; {
		found, err := r.drain(ctx)
		if err != nil {
			return err
		}
		if r.stopAtEnd && (!r.withheld || r.wm.settled >= r.end) {
			return errDrained
		}
		if !found && !r.deferred && (moved || time.Since(r.checked) > checkWait) { // the head moved and there is no new row: it may have gone back
			if err := errors.Join(r.checkHead(ctx), r.checkLeast(ctx)); err != nil {
				return err
			}
		}
		if !r.deferred {
			if err := r.retry(ctx); err != nil {
				return err
			}
		}
		if r.unchecked = r.unchecked || found; r.unchecked && !r.deferred && !time.Now().Before(r.origins.next) {
			if err := r.checkOrigin(ctx); err != nil {
				return err
			}
		}
		if r.alternate {
			if err := r.await(ctx, nil); err != nil {
				return err
			}
		}
		if r.withheld {
			r.sayWait(ctx)
		} else {
			r.sayNext = time.Time{}
		}
		seen := head
		if head, err = r.waiter.Wait(ctx, head, r.bound(found)); err != nil {
			return err
		}
		if r.woken != nil {
			r.woken(wokenBy(r.waiter, head != seen))
		}
		moved = head != seen || moved && r.deferred // a check that was put off
	}
}

// wokenBy returns the cause that ended a wait, for Options.Woken.
func wokenBy(waiter core.Waiter, moved bool) string {
	if !moved {
		return wakeTimeout
	}
	switch w := waiter.(type) {
	case *core.Auto:
		if mode, _ := w.Mode(); mode == "trigger" {
			return wakeTrigger
		}
		return wakePoll
	case *core.Handshake:
		return wakeHandshake
	}
	return wakePoll
}

// begin polls the writers before the first page, so that below the resulting horizon the reader need not track gaps.
func (r *reader) begin(ctx context.Context) error {
	if err := r.checkHead(ctx); err != nil {
		return err
	}
	if err := r.checkOrigin(ctx); err != nil {
		return err
	}
	if !r.waits() { // the stored gaps may have been filled in the meantime, and more rows may still fill them
		if _, err := r.reread(ctx, position.Span{Lo: r.wm.settled + 1, Hi: r.wm.frontier}); err != nil {
			return err
		}
	}
	head, err := r.head(ctx)
	if err != nil || head <= r.wm.settled {
		return err
	}
	r.end = head
	_, err = r.pollWriters(ctx, head)
	return err
}

// bound returns the longest time of the next wait.
func (r *reader) bound(found bool) time.Duration {
	if !r.wm.waiting() && !r.withheld && !r.deferred {
		r.gapWaits.Reset()
		if r.retries != nil {
			return retryWait
		}
		return maxWait
	}
	if found {
		r.gapWaits.Reset()
	}
	return r.gapWaits.NextBackOff()
}

// drain reads pages until there are no more, and polls the writers if there are gaps. It reports whether it found rows.
func (r *reader) drain(ctx context.Context) (found bool, err error) {
	for {
		p, err := r.readPage(ctx)
		r.deferred = err != nil
		if err != nil {
			if server.Retryable(err) && !r.stopAtEnd { // for example a statement that waits behind an ALTER TABLE
				r.log.DebugContext(ctx, "read deferred", "error", err)
				return found, nil
			}
			return found, err
		}
		found = found || p.handed
		r.withheld = p.withheld
		if (r.wm.waiting() || p.head > r.wm.settled) && (!p.more || r.due()) {
			head := p.head
			if p.full { // poll up to the end, because below the settled head gaps need not be tracked
				end, err := r.head(ctx)
				if err != nil {
					return found, err
				}
				head = max(head, end)
			}
			came, err := r.pollWriters(ctx, head)
			if err != nil {
				return found, err
			}
			found = found || came
			p.more = p.more || p.withheld && r.wm.horizon >= p.head
		}
		if !p.more {
			return found, nil
		}
	}
}

// due reports whether to poll the writers while there are more pages to read. Below the horizon no row waits for a
// poll. The poll only keeps the horizon ahead, and takes the server as long as a fifth of a page.
func (r *reader) due() bool {
	next := r.nextPoll
	if r.wm.frontier < r.wm.horizon {
		next = next.Add(backlogWait)
	}
	return !time.Now().Before(next)
}

// reading is the outcome of reading a page.
type reading struct {
	head     uint64 // the largest known id
	handed   bool   // rows were handed out
	more     bool   // there may be more rows to read
	full     bool   // the page is full, so the table may have rows after it
	withheld bool   // rows wait until a gap before them closes
}

// readPage reads the rows after the frontier and hands them out.
func (r *reader) readPage(ctx context.Context) (reading, error) {
	if len(r.wm.seen.Spans) >= maxSpans { // the set of ids above the gaps has reached its memory limit
		r.log.WarnContext(ctx, "reading waits until a writer ends: too many gaps are open", "gaps", maxSpans)
		return reading{head: r.wm.frontier, withheld: true}, nil
	}
	var head uint64
	var err error
	if r.rows.where != "" {
		// With the head the reader skips rows that the condition excludes only once.
		if head, err = r.head(ctx); err != nil {
			return reading{}, err
		}
	}
	limit := r.limit
	// Below the horizon gaps are not tracked. A row that was read ahead, before the horizon was known, may come after rows that
	// were committed since.
	page, err := r.rows.after(ctx, r.wm.frontier, limit, r.wm.frontier < r.wm.horizon)
	if err != nil {
		return reading{}, fmt.Errorf("consumer: read page: %w", err)
	}
	messages := page.messages
	if r.keyed && !r.strict && len(messages) > 0 && r.wm.waiting() {
		if r.waits() {
			return reading{head: r.wm.frontier, withheld: true}, nil
		}
		// Read the gaps after the page and hand them out before it. If a row was committed before a row of the page was
		// published, it is visible by now, and may fill a gap below the page.
		if _, err := r.reread(ctx, position.Span{Lo: r.wm.settled + 1, Hi: r.wm.frontier}); err != nil {
			return reading{}, err
		}
	}
	if len(messages) > 0 {
		r.limit = max(1, min(r.pageRows, pageBytes/max(1, page.bytes/len(messages)), 4*limit))
	}
	ids := idsOf(messages)
	done := reading{more: page.full, full: page.full}
	if len(ids) > 0 {
		head = max(head, ids[len(ids)-1])
	}
	if r.strict {
		certain := r.wm.certain(ids)
		done.withheld = certain < len(ids)
		ids, messages = ids[:certain], messages[:certain]
	}
	r.wm.page(ids)
	if r.forget {
		r.wm.settle(r.wm.frontier)
	}
	switch {
	case done.withheld:
		done.more = false
	case !done.more && r.strict:
		r.wm.pass(min(head, r.wm.horizon))
	case !done.more:
		r.wm.pass(head)
	}
	done.head = max(head, r.wm.frontier)
	if len(messages) == 0 {
		return done, nil
	}
	done.handed = true
	return done, r.hand(ctx, batch{messages: messages, inOrder: r.wm.settled >= ids[len(ids)-1]})
}

// hand sends a batch to the delivery.
func (r *reader) hand(ctx context.Context, b batch) error {
	b.settled = r.wm.settled
	r.handed = r.wm.settled
	if r.keyed {
		b.messages, b.passed = own(b.messages)
	}
	select {
	case r.out <- b:
		runtime.Gosched() // let the handler run before the reader's next statement
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await hands out messages, and returns when these and all earlier ones are handled.
func (r *reader) await(ctx context.Context, messages []Message) error {
	handled := make(chan struct{})
	if err := r.hand(ctx, batch{messages: messages, handled: handled}); err != nil {
		return err
	}
	select {
	case <-handled:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func idsOf(messages []Message) []uint64 {
	ids := make([]uint64, len(messages))
	for i := range messages {
		ids[i] = messages[i].ID
	}
	return ids
}
