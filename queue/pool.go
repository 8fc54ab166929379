package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// held is a claim of the worker.
type held struct {
	task    Task
	trusted time.Time // until then no other worker can claim it, by the clock of this process
	lost    bool
	begun   bool
	settled bool // its outcome is known
	// cancelled is true if the task was cancelled: its handler's context has ended, and the claim is given up when it returns.
	cancelled bool
	cancel    context.CancelCauseFunc
	timer     *time.Timer // calls expire when the claim stops being trusted
}

// pool has a worker's claims and the goroutines that handle them. It sends no statements.
type pool struct {
	handler func(ctx context.Context, task Task) error
	backoff func(attempt int) time.Duration
	dropped func(task Task) // called with the task of an outcome that comes after the claim was lost; may be nil

	mu       sync.Mutex
	waiting  []*held // claimed, and not begun
	held     map[uint64]*held
	outcomes []outcome // not stored yet
	deferred []outcome // not stored because another session has their unique keys locked
	lapsed   []*held   // lost while their handlers ran, in the last day; without their payloads
	oldest   time.Time // when the first of outcomes came
	running  int
	alone    *held // the claim on a task that is handled alone, until its handler ends
	quick    bool  // the last handler returned almost at once
	most     int   // the number of handlers
	closed   bool
	work     *sync.Cond
	changed  chan struct{} // has a value when an outcome came or a handler is free; capacity 1
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

// start starts the handlers' goroutines, which close ends.
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

// take adds new claims. They are trusted for a tenth less than they hold, counted from
// the moment when the claim was sent, which is before it began on the server.
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

// run is a handler's goroutine. Another one follows if the handler ends it.
func (h *pool) run(ctx context.Context) {
	closed := false
	defer func() {
		if !closed {
			h.handlers.Go(func() { h.run(ctx) })
		}
	}()
	for {
		h.mu.Lock()
		for len(h.waiting) == 0 && !h.closed {
			h.work.Wait()
		}
		if closed = h.closed; closed {
			h.mu.Unlock()
			return
		}
		claim := h.waiting[0]
		h.waiting = h.waiting[1:]
		left := time.Until(claim.trusted)
		if claim.lost || left <= 0 { // it waited too long, and another worker may have the task
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
		h.handle(working, claim)
	}
}

// handle calls the handler and records the outcome, even if the handler ends its goroutine.
func (h *pool) handle(ctx context.Context, claim *held) {
	begun := time.Now()
	var o outcome
	err := errors.New("the handler ended its goroutine (runtime.Goexit, as FailNow of a test does)")
	defer func() {
		if o.held == nil {
			o = failed(claim, err)
		}
		h.settle(claim, o, time.Since(begun))
	}()
	if p := protect(func() { err = h.handler(ctx, claim.task) }); p != nil {
		err = p
	}
	if p := protect(func() { o = h.outcomeOf(claim, err) }); p != nil { // Backoff, or the error itself
		err = p
	}
}

// protect calls f, which calls the user's code. A panic becomes an error, because it must neither end the
// process, which has other tasks, nor go unnoticed.
func protect(f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	f()
	return nil
}

// settle records the outcome of a claim whose handler has ended.
func (h *pool) settle(claim *held, o outcome, took time.Duration) {
	h.mu.Lock()
	h.quick = took < coalesceFor
	claim.timer.Stop()
	claim.cancel(context.Canceled)
	h.running--
	claim.settled = true
	h.over(claim)
	late := claim.lost
	if late {
		h.forget(claim)
		h.lapsed = slices.DeleteFunc(h.lapsed, func(c *held) bool { return time.Since(c.trusted) > 24*time.Hour })
		claim.task.Payload = nil // it may be large
		h.lapsed = append(h.lapsed, claim)
	} else {
		if claim.cancelled {
			o = outcome{held: claim, kind: wasCancelled}
		}
		if len(h.outcomes) == 0 {
			h.oldest = time.Now()
		}
		h.outcomes = append(h.outcomes, o)
	}
	// With neither, the dispatcher was signalled before, or has nothing to do yet.
	news := len(h.waiting) == 0 || len(h.outcomes) == 1
	h.mu.Unlock()
	if news {
		poke(h.changed)
	}
	if late && h.dropped != nil {
		h.dropped(claim.task)
	}
}

// forget removes a claim that is settled or lost. The caller holds mu.
func (h *pool) forget(claim *held) {
	if h.held[claim.task.ID] == claim {
		delete(h.held, claim.task.ID)
	}
}

// over records that the claim's handler has ended, or never begins. The caller holds mu.
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

// poolState is the information by which the dispatcher decides.
type poolState struct {
	outcomes int
	oldest   time.Time
	deferred int  // outcomes that wait for a unique key
	free     int  // how many more claims the worker may have, given the batch
	idle     int  // how many handlers have no task
	wanting  bool // a handler has no task, and may begin one
	claims   int  // claims that are not settled
	quick    bool // handlers return almost at once
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

// errorsAtOnce bounds the error texts of the outcomes that are stored together, in bytes. Escaped, and with their statements, they fit
// into a packet of 1 MiB, which is the least that servers take unless they are told otherwise.
const errorsAtOnce = 256 << 10

// pending returns the outcomes to store next; wrote removes them. Their number and their size are bounded, because more might not fit
// into a packet.
func (h *pool) pending() []outcome {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, size := 0, 0
	for n < min(len(h.outcomes), rowsAtOnce) && size < errorsAtOnce {
		size += len(h.outcomes[n].text)
		n++
	}
	return slices.Clone(h.outcomes[:n])
}

func (h *pool) wrote(outcomes []outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outcomes = slices.Delete(h.outcomes, 0, len(outcomes)) // new outcomes were appended behind them
	if len(h.outcomes) > 0 {
		h.oldest = time.Now()
	}
	for _, o := range outcomes {
		h.forget(o.held)
	}
}

// keyed returns the tasks whose outcomes free a unique key, also the deferred ones.
func (h *pool) keyed() (ids []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, outcomes := range [][]outcome{h.outcomes, h.deferred} {
		for _, o := range outcomes {
			if o.freesKey() {
				ids = append(ids, o.held.task.ID)
			}
		}
	}
	return ids
}

// putOff defers the outcomes of these tasks, and no others.
func (h *pool) putOff(ids []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	locked := make(map[uint64]bool, len(ids))
	for _, id := range ids {
		locked[id] = true
	}
	all := slices.Concat(h.outcomes, h.deferred)
	h.outcomes, h.deferred = nil, nil
	for _, o := range all {
		if locked[o.held.task.ID] {
			h.deferred = append(h.deferred, o)
		} else {
			h.outcomes = append(h.outcomes, o)
		}
	}
}

// claims returns the claims that the worker knows of, with or without the lost ones. A
// settled task stays in it until its outcome is stored, which may take time.
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

// begun returns how many claims there are that a handler has begun.
func (h *pool) begun() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, claim := range h.held {
		if claim.begun {
			n++
		}
	}
	return n
}

// known returns all claims that are not to be given back: those of claims, and those that were lost while their handlers ran, which lapse.
func (h *pool) known() []Task {
	tasks := h.claims(true)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, claim := range h.lapsed {
		tasks = append(tasks, claim.task)
	}
	return tasks
}

// renewed processes the answer to a renewal, and returns the claims that were lost while their handlers ran. A
// settled task that is lost may be done, by the handler's own transaction.
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

// release returns the claims that no handler has begun, also while the worker has no session.
func (h *pool) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waiting) > 0 && len(h.outcomes) == 0 {
		h.oldest = time.Now()
	}
	for _, claim := range h.waiting {
		claim.settled = true
		h.over(claim)
		h.outcomes = append(h.outcomes, outcome{held: claim, kind: wasReleased})
	}
	h.waiting = nil
}
