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
	// pageBytes is about how much of payload a page holds.
	pageBytes = 4 << 20
	// maxWait bounds every wait for a hint.
	maxWait = 2 * time.Minute
	// checkWait is how often a reader that finds nothing checks whether the table's ids
	// have gone back, where nothing moves.
	checkWait = 5 * time.Minute
	// maxGapWait is the longest time between two polls of the writers while gaps are open.
	maxGapWait = time.Second
	// backlogWait is added between two polls while the rows to read next are all settled.
	backlogWait = 200 * time.Millisecond
)

// batch is what the reader hands out at once.
type batch struct {
	messages []Message
	passed   []uint64 // the ids of messages that are none of this member's
	// settled is the watermark once these messages and all before are handled.
	settled uint64
	// inOrder tells that nothing with a lower id is outstanding or can come, so that
	// each message moves the watermark to itself.
	inOrder bool
	// handled, if not nil, is closed when everything so far was handled.
	handled chan struct{}
}

// errDrained ends a reader that was to stop at the table's end.
var errDrained = errors.New("the end of the table")

// reader reads the rows over one connection, each once, and hands them out.
type reader struct {
	rows        *rows
	origins     *origins // nil for a test
	retries     *retries // nil where no dead letter is tried again by reading its row
	source      source
	grace       time.Duration // how long a gap stays open after its writers' end, where writers may not be seen
	replication *replication
	waiter      core.Waiter
	woken       func(string) // may be nil
	wm          *watermark
	out         chan<- batch
	waiting     func(id uint64, most time.Duration)
	log         *slog.Logger

	pageRows  int
	strict    bool
	grouped   bool // its offset is a group's
	keyed     bool // what commits late comes before what was published after it
	stopAtEnd bool
	alternate bool // the waiter wants everything handled before it waits
	forget    bool // no gaps: for the test that shows what is lost without them

	limit     int // rows of the next page
	gapWaits  notify.Fibonacci
	nextPoll  time.Time     // no poll of the writers before
	handed    uint64        // the watermark that was handed out last
	withheld  bool          // rows wait for a gap before them to close
	sayNext   time.Time     // when the log says so; zero while nothing is withheld
	given     time.Duration // the grace of the last poll
	end       uint64        // the head at the beginning
	unchecked bool          // rows came since the table's origin was checked
	checked   time.Time     // when the head was compared with the watermark
	warned    bool          // of rows that are not read
}

// run reads until the context ends or something is lost.
func (r *reader) run(ctx context.Context) error {
	r.limit = min(100, r.pageRows)
	r.wm.late = r.source.late()
	r.gapWaits = notify.Fibonacci{Min: r.source.pace(), Max: maxGapWait, Jitter: 0.1}
	if err := r.begin(ctx); err != nil {
		return err
	}
	if err := r.retry(ctx); err != nil {
		return err
	}
	// What is there needs no waiter, which may have to wait for others before it can begin.
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
		if !found && (moved || time.Since(r.checked) > checkWait) { // moved to where nothing is: back, perhaps
			if err := errors.Join(r.checkHead(ctx), r.checkLeast(ctx)); err != nil {
				return err
			}
		}
		if err := r.retry(ctx); err != nil {
			return err
		}
		if r.unchecked = r.unchecked || found; r.unchecked {
			if err := r.checkOrigin(ctx); err != nil {
				return err
			}
		}
		if r.alternate {
			if err := r.await(ctx, nil); err != nil {
				return err
			}
		}
		r.sayWait(ctx)
		seen := head
		if head, err = r.waiter.Wait(ctx, head, r.bound(found)); err != nil {
			return err
		}
		moved = head != seen
		if r.woken != nil {
			r.woken(wokenBy(r.waiter, moved))
		}
	}
}

// wokenBy tells what ended a wait.
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

// begin finds out what is settled already, so that a backlog is read without
// keeping its gaps in mind.
func (r *reader) begin(ctx context.Context) error {
	if err := r.checkHead(ctx); err != nil {
		return err
	}
	if err := r.checkOrigin(ctx); err != nil {
		return err
	}
	if !r.waits() { // the stored gaps may have been filled meanwhile, and more rows may still fill them
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

// bound is how long the next wait may be.
func (r *reader) bound(found bool) time.Duration {
	if !r.wm.waiting() && !r.withheld {
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

// drain reads pages until there is no more, and polls the writers if there are gaps. It tells
// whether anything came.
func (r *reader) drain(ctx context.Context) (found bool, err error) {
	for {
		p, err := r.readPage(ctx)
		if err != nil {
			if server.Retryable(err) && !r.stopAtEnd { // behind an ALTER TABLE that waits, say
				r.log.DebugContext(ctx, "read put off", "error", err)
				return found, nil
			}
			return found, err
		}
		found = found || p.handed
		r.withheld = p.withheld
		if (r.wm.waiting() || p.head > r.wm.settled) && (!p.more || r.due()) {
			head := p.head
			if p.full { // what is settled up to the end is read without keeping gaps in mind
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

// due reports whether to poll the writers while there are pages to read. Below the horizon no row waits for a
// poll: it only keeps the horizon ahead, and takes the server as long as a fifth of a page.
func (r *reader) due() bool {
	next := r.nextPoll
	if r.wm.frontier < r.wm.horizon {
		next = next.Add(backlogWait)
	}
	return !time.Now().Before(next)
}

// reading is the outcome of reading a page.
type reading struct {
	head     uint64 // the largest id known
	handed   bool   // something was handed out
	more     bool   // there may be more to read
	full     bool   // the page is full: the table's end is further on, perhaps
	withheld bool   // rows wait for a gap before them to close
}

// readPage reads what is past the frontier and hands it out.
func (r *reader) readPage(ctx context.Context) (reading, error) {
	if r.wm.full() {
		r.log.WarnContext(ctx, "reading waits until a writer ends: too many gaps are open", "gaps", maxSpans)
		return reading{head: r.wm.frontier, withheld: true}, nil
	}
	var head uint64
	var err error
	if r.rows.where != "" {
		// The reader passes over the rows that the condition leaves out once, not at every reading.
		if head, err = r.head(ctx); err != nil {
			return reading{}, err
		}
	}
	limit := r.limit
	// Below the horizon gaps are not kept in mind: what was read before it was known may lack
	// rows that came since.
	page, err := r.rows.after(ctx, r.wm.frontier, limit, r.wm.frontier < r.wm.horizon)
	if err != nil {
		return reading{}, fmt.Errorf("consumer: read page: %w", err)
	}
	messages := page.messages
	if r.keyed && len(messages) > 0 && r.wm.waiting() {
		if r.waits() {
			return reading{head: r.wm.frontier, withheld: true}, nil
		}
		// The gaps are read after the page and handed out before it: a row that was committed before
		// a row of the page was published is then visible, and may be in a gap below the page.
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

// hand gives a batch to the handler's side.
func (r *reader) hand(ctx context.Context, b batch) error {
	b.settled = r.wm.settled
	r.handed = r.wm.settled
	if r.keyed {
		b.messages, b.passed = own(b.messages)
	}
	select {
	case r.out <- b:
		runtime.Gosched() // the handler first, then what the reader asks next
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await hands out messages, and returns when all that was handed out is handled.
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
