package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

const (
	// pageBytes is about how much of payload a page holds.
	pageBytes = 4 << 20
	// maxRanges is how many gaps one statement reads again; past it, the ids alone
	// are read first.
	maxRanges = 100
	// maxProbes bounds the rows that are probed for a lock before a gap is given up
	// by time alone.
	maxProbes = 64
	// maxWait bounds every wait for a hint.
	maxWait = 2 * time.Minute
	// checkWait is how often a reader that finds nothing looks whether the table's ids
	// have gone back, where nothing moves.
	checkWait = 5 * time.Minute
	// maxGapWait is the longest time between two looks at open gaps.
	maxGapWait = time.Second
)

// batch is what the reader hands out at once.
type batch struct {
	messages []Message
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

// reader reads the rows of one session's life, each once, and hands them out.
type reader struct {
	rows   *rows
	source source
	grace  time.Duration // what a gap is given beside its writers' end
	waiter notify.Waiter
	wm     *watermark
	out    chan<- batch
	log    *slog.Logger

	pageRows  int
	strict    bool
	stopAtEnd bool
	alternate bool // the waiter wants everything handled before it waits
	forget    bool // no gaps: for the test that shows what is lost without them

	limit    int // rows of the next page
	gapWaits notify.Fibonacci
	nextLook time.Time // no look at the writers before
	handed   uint64    // the watermark that was handed out last
	withheld bool      // rows wait for a gap before them to close
	end      uint64    // the head at the beginning
	checked  time.Time // when the head was compared with the watermark
}

// run reads until the context ends or something is lost.
func (r *reader) run(ctx context.Context) error {
	r.limit = min(100, r.pageRows)
	r.wm.late = r.source.late()
	r.gapWaits = notify.Fibonacci{Min: r.source.pace(), Max: maxGapWait, Jitter: 0.1}
	if err := r.begin(ctx); err != nil {
		return err
	}
	// What is there needs no waiter, which may have to wait for others before it can begin.
	if _, err := r.drain(ctx); err != nil {
		return err
	}
	var head notify.Head
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
			if err := r.checkHead(ctx); err != nil {
				return err
			}
		}
		if r.alternate {
			if err := r.await(ctx); err != nil {
				return err
			}
		}
		seen := head
		if head, err = r.waiter.Wait(ctx, head, r.bound(found)); err != nil {
			return err
		}
		moved = head != seen
	}
}

// begin finds out what is settled already, so that a backlog is read without
// keeping its gaps in mind.
func (r *reader) begin(ctx context.Context) error {
	if err := r.checkHead(ctx); err != nil {
		return err
	}
	if !r.strict { // what came into the stored gaps meanwhile, whoever else may still come
		if _, err := r.reread(ctx, span{r.wm.settled + 1, r.wm.frontier}); err != nil {
			return err
		}
	}
	head, err := r.head(ctx)
	if err != nil || head <= r.wm.settled {
		return err
	}
	r.end = head
	_, err = r.look(ctx, head)
	return err
}

// bound is how long the next wait may be.
func (r *reader) bound(found bool) time.Duration {
	if !r.wm.waiting() && !r.withheld {
		r.gapWaits.Reset()
		return maxWait
	}
	if found {
		r.gapWaits.Reset()
	}
	return r.gapWaits.NextBackOff()
}

// drain reads pages until there is no more, and looks after the gaps. It tells
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
		if (r.wm.waiting() || p.head > r.wm.settled) && (!p.more || !time.Now().Before(r.nextLook)) {
			head := p.head
			if p.full { // what is settled up to the end is read without keeping gaps in mind
				end, err := r.head(ctx)
				if err != nil {
					return found, err
				}
				head = max(head, end)
			}
			came, err := r.look(ctx, head)
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

// reading is what came of reading a page.
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
		// Rows that the condition leaves out are to be passed over once, not at each reading.
		if head, err = r.head(ctx); err != nil {
			return reading{}, err
		}
	}
	limit := r.limit
	page, err := r.rows.after(ctx, r.wm.frontier, limit)
	if err != nil {
		return reading{}, fmt.Errorf("consumer: read page: %w", err)
	}
	messages := page.messages
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

// look asks who is open, and reads again the gaps that somebody who ended might
// have filled. The head was read before.
func (r *reader) look(ctx context.Context, head uint64) (came bool, err error) {
	if time.Now().Before(r.nextLook) {
		return false, nil
	}
	open, err := r.source.open(ctx)
	now := time.Now()
	r.nextLook = now.Add(r.source.pace())
	if errors.Is(err, errStale) { // nothing is settled, but what came need not wait
		n, err := r.reread(ctx, span{r.wm.settled + 1, r.wm.frontier})
		return n > 0, err
	}
	if err != nil {
		return false, err
	}
	again, ended := r.wm.look(head, open, now, r.grace)
	if ended > r.wm.settled && r.grace > 0 {
		locked, err := r.locked(ctx, ended)
		if err != nil {
			return false, err
		}
		if locked {
			ended = r.wm.settled
		}
	}
	if r.strict { // the gaps below what was handed out in another order
		again = span{r.wm.settled + 1, ended}
	}
	n, err := r.reread(ctx, again)
	if err != nil {
		return false, err
	}
	r.wm.end(ended)
	if r.wm.settled > r.handed {
		return true, r.hand(ctx, batch{})
	}
	return n > 0, nil
}

// reread reads the gaps of a span again and hands out what is there now.
func (r *reader) reread(ctx context.Context, s span) (n int, err error) {
	for {
		gaps, whole, err := r.gaps(ctx, s.lo-1, min(s.hi, r.wm.frontier))
		if err != nil || len(gaps) == 0 {
			return n, err
		}
		page, err := r.rows.within(ctx, gaps, r.limit)
		if err != nil {
			return n, fmt.Errorf("consumer: read gaps: %w", err)
		}
		if len(page.messages) > 0 {
			n += len(page.messages)
			r.wm.reread(idsOf(page.messages))
			if err := r.hand(ctx, batch{messages: page.messages}); err != nil {
				return n, err
			}
		}
		if whole && !page.full {
			return n, nil
		}
	}
}

// gaps are the ranges of (after, upTo] to be read again, maxRanges at most; whole
// tells that these are all. Where there are more, the ids that are there are read
// first, and the ranges are those of ids that were not there before.
func (r *reader) gaps(ctx context.Context, after, upTo uint64) (gaps []span, whole bool, err error) {
	for gap := range r.wm.seen.missing(max(after, r.wm.settled), upTo) {
		if gaps = append(gaps, gap); len(gaps) > maxRanges {
			break
		}
	}
	if len(gaps) <= maxRanges {
		return gaps, true, nil
	}
	const limit = 10_000
	var appeared idSet
	for from := max(after, r.wm.settled); ; {
		ids, err := r.rows.ids(ctx, from, upTo, limit)
		if err != nil {
			return nil, false, fmt.Errorf("consumer: read ids: %w", err)
		}
		for _, id := range ids {
			if !r.wm.seen.contains(id) {
				appeared.add(id, id)
			}
			if len(appeared.spans) == maxRanges {
				return appeared.spans, false, nil
			}
		}
		if len(ids) < limit {
			return appeared.spans, true, nil
		}
		from = ids[len(ids)-1]
	}
}

// hand gives a batch to the handler's side.
func (r *reader) hand(ctx context.Context, b batch) error {
	b.settled = r.wm.settled
	r.handed = r.wm.settled
	select {
	case r.out <- b:
		runtime.Gosched() // the handler first, then what the reader asks next
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await returns when all that was handed out is handled.
func (r *reader) await(ctx context.Context) error {
	handled := make(chan struct{})
	if err := r.hand(ctx, batch{handled: handled}); err != nil {
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
