package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/notify"
)

// held is a claim that the worker has.
type held struct {
	task    Task
	trusted time.Time // until then no other worker can claim it, by the clock here
	lost    bool
	begun   bool
	settled bool // an outcome is known
	// cancelled is set when the task was cancelled: its handler is ended, and the claim is given up when it returns.
	cancelled bool
	cancel    context.CancelCauseFunc
	timer     *time.Timer // ends the handler's context at trusted
}

// pool has a worker's claims and the goroutines that handle them. It makes no statement.
type pool struct {
	handler func(ctx context.Context, task Task) error
	backoff func(attempt int) time.Duration
	dropped func(task Task) // is told of a result that comes when the claim is lost; may be nil

	mu       sync.Mutex
	waiting  []*held // claimed, and not begun
	held     map[uint64]*held
	outcomes []outcome // not written down yet
	deferred []outcome // the same, while another session has their unique keys locked
	oldest   time.Time // when the first of them came
	running  int
	alone    *held // the claim on a task that is handled alone, until its handler ends
	quick    bool  // the last handler to end had taken no time
	untold   bool  // there may be tasks to do that no other worker has heard of
	most     int
	closed   bool
	work     *sync.Cond
	changed  chan struct{} // one slot: an outcome came, or a handler is free
	handlers sync.WaitGroup
}

func newPool(n int, handler func(ctx context.Context, task Task) error, backoff func(int) time.Duration) *pool {
	h := &pool{
		handler: handler, backoff: backoff, most: n,
		held: make(map[uint64]*held), changed: make(chan struct{}, 1),
	}
	h.work = sync.NewCond(&h.mu)
	return h
}

// start makes the handlers' goroutines, which end with close.
func (h *pool) start(ctx context.Context) {
	for range h.most {
		h.handlers.Go(func() { h.run(ctx) })
	}
}

// close returns when no handler runs any more.
func (h *pool) close() {
	h.mu.Lock()
	h.closed = true
	h.work.Broadcast()
	h.mu.Unlock()
	h.handlers.Wait()
}

func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take takes new claims. They are trusted for a tenth less than they hold, from the
// moment that the claim began here, which is before it began on the server.
func (h *pool) take(tasks []Task, started time.Time, visibility time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range tasks {
		claim := &held{task: t, trusted: trustedUntil(started, visibility)}
		h.held[t.ID] = claim
		h.waiting = append(h.waiting, claim)
		if t.alone() {
			h.alone = claim
		}
	}
	if len(tasks) == 1 {
		h.work.Signal()
	} else {
		h.work.Broadcast()
	}
}

func trustedUntil(started time.Time, visibility time.Duration) time.Time {
	return started.Add(visibility - visibility/10)
}

// run is a handler's goroutine.
func (h *pool) run(ctx context.Context) {
	for {
		h.mu.Lock()
		for len(h.waiting) == 0 && !h.closed {
			h.work.Wait()
		}
		if h.closed {
			h.mu.Unlock()
			return
		}
		claim := h.waiting[0]
		h.waiting = h.waiting[1:]
		left := time.Until(claim.trusted)
		if claim.lost || left <= 0 { // it waited too long, and may be another's
			h.forget(claim)
			h.over(claim)
			h.mu.Unlock()
			poke(h.changed)
			continue
		}
		working, cancel := context.WithCancelCause(ctx)
		claim.begun, claim.cancel = true, cancel
		claim.timer = time.AfterFunc(left, func() { h.expire(claim) })
		h.running++
		h.mu.Unlock()

		begun := time.Now()
		err := h.call(working, claim.task)
		took := time.Since(begun)

		h.mu.Lock()
		h.quick = took < coalesceFor
		claim.timer.Stop()
		cancel(context.Canceled)
		h.running--
		claim.settled = true
		h.over(claim)
		late := claim.lost
		if late {
			h.forget(claim)
		} else {
			if len(h.outcomes) == 0 {
				h.oldest = time.Now()
			}
			h.outcomes = append(h.outcomes, h.outcomeOf(claim, err))
		}
		// What lies between can wait for one of these.
		news := len(h.waiting) == 0 || len(h.outcomes) == 1
		h.mu.Unlock()
		if news {
			poke(h.changed)
		}
		if late && h.dropped != nil {
			h.dropped(claim.task)
		}
	}
}

// call calls the handler. A panic is a failure like any other: it must neither end the
// process, whose other tasks are in the middle, nor be lost.
func (h *pool) call(ctx context.Context, task Task) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return h.handler(ctx, task)
}

// forget drops a claim that is settled or lost. The caller has mu.
func (h *pool) forget(claim *held) {
	if h.held[claim.task.ID] == claim {
		delete(h.held, claim.task.ID)
	}
}

// over notes that the claim's handler has ended, or never begins. The caller has mu.
func (h *pool) over(claim *held) {
	if h.alone == claim {
		h.alone = nil
	}
}

// expire ends the handler of a claim that was not renewed in time.
func (h *pool) expire(claim *held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if left := time.Until(claim.trusted); left > 0 { // it was renewed since
		claim.timer.Reset(left)
		return
	}
	h.lose(claim)
}

func (h *pool) lose(claim *held) {
	claim.lost = true
	if claim.begun && !claim.settled {
		claim.cancel(claim.lostError())
	}
}

func (h *held) lostError() error { return fmt.Errorf("queue: task %d: %w", h.task.ID, ErrClaimLost) }

// outcomeOf is what a handler's answer means.
func (h *pool) outcomeOf(claim *held, err error) outcome {
	if claim.cancelled {
		return outcome{held: claim, kind: wasCancelled}
	}
	if err == nil {
		return outcome{held: claim, kind: wasDone}
	}
	o := outcome{held: claim, kind: wasFailed, text: lastError(err), err: err}
	if claim.task.Retries <= 0 || errors.Is(err, notify.ErrDead) {
		o.kind = wasFatal
		return o
	}
	o.wait = min(max(0, h.backoff(max(1, claim.task.Attempt-claim.task.Lapses))), maxDelay)
	return o
}

// lastError is the text of an error as it is stored: a column has 64 KiB.
func lastError(err error) string {
	const most = 8 << 10
	text := err.Error()
	return strings.ToValidUTF8(text[:min(len(text), most)], "\uFFFD")
}

// poolState is what the worker decides on.
type poolState struct {
	outcomes int
	oldest   time.Time
	deferred int  // outcomes that wait for a unique key
	free     int  // how many claims there is room for, of batch
	idle     int  // how many handlers have nothing to do
	wanting  bool // one has, and may begin another task
	claims   int  // that are not settled
	quick    bool // handlers end about when they have begun
}

func (h *pool) state(batch int) poolState {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := poolState{outcomes: len(h.outcomes), oldest: h.oldest, deferred: len(h.deferred), quick: h.quick}
	s.claims = len(h.waiting) + h.running
	s.free = max(0, max(batch, h.most)-s.claims)
	s.idle = max(0, h.most-s.claims)
	s.wanting = len(h.waiting) == 0 && s.idle > 0 && h.alone == nil
	return s
}

// pending are the outcomes to be written down now; wrote says that they were. More than that, each with a
// long error, might fit into no packet.
func (h *pool) pending() []outcome {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.outcomes[:min(len(h.outcomes), rowsAtOnce)])
}

func (h *pool) wrote(outcomes []outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outcomes = slices.Delete(h.outcomes, 0, len(outcomes)) // others came behind them alone
	if len(h.outcomes) > 0 {
		h.oldest = time.Now()
	}
	for _, o := range outcomes {
		h.forget(o.held)
		h.untold = h.untold || o.kind == wasFailed || o.kind == wasReleased
	}
}

// putOff keeps back the outcomes that free a unique key, until bringBack: a session that has found the
// key taken may have it locked for long, and the other outcomes must not wait for that.
func (h *pool) putOff() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outcomes = slices.DeleteFunc(h.outcomes, func(o outcome) bool {
		defers := o.freesKey()
		if defers {
			h.deferred = append(h.deferred, o)
		}
		return defers
	})
}

func (h *pool) bringBack() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outcomes = append(h.outcomes, h.deferred...)
	h.deferred = nil
}

// owes notes whether only this worker knows of some tasks, or when they fall due: it must then tell
// the other workers when it stops. told reports whether it must.
func (h *pool) owes(some bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.untold = h.untold || some
}

func (h *pool) told() (was bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was, h.untold = h.untold, false
	return was
}

// claims returns the claims that the worker knows of, with the lost ones or without them, as for a renewal. A
// settled task keeps its claim until its outcome is stored, because that may have to wait.
func (h *pool) claims(lost bool) []Task {
	h.mu.Lock()
	defer h.mu.Unlock()
	var tasks []Task
	for _, claim := range h.held {
		if lost || !claim.lost {
			tasks = append(tasks, claim.task)
		}
	}
	return tasks
}

// renewed takes the answer to a renewal, and returns what was lost in the middle: what is
// settled may be done, by the handler's own transaction.
func (h *pool) renewed(renewed, lost []Task, started time.Time, visibility time.Duration) (losses []Task) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gone := map[uint64]bool{}
	for _, t := range lost {
		gone[t.ID] = true
	}
	for _, t := range renewed {
		claim := h.held[t.ID]
		switch {
		case claim == nil || claim.task.Attempt != t.Attempt || claim.lost:
		case !gone[t.ID]:
			claim.trusted = trustedUntil(started, visibility)
		case !claim.settled:
			h.lose(claim)
			losses = append(losses, t)
		}
	}
	return losses
}

// release gives back what no handler has begun.
func (h *pool) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waiting) > 0 && len(h.outcomes) == 0 {
		h.oldest = time.Now()
	}
	for _, claim := range h.waiting {
		claim.settled = true
		h.outcomes = append(h.outcomes, outcome{held: claim, kind: wasReleased})
	}
	h.waiting = nil
}
