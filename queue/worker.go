package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/notify"
)

// handler does a task.
type handler = func(ctx context.Context, task Task) error

// worker claims the tasks of a queue and hands them to a handler.
type worker struct {
	queue   *Queue
	options WorkerOptions
	log     *slog.Logger
	idle    time.Duration // its session's IdleTimeout
}

// Work claims tasks and handles them until the context ends. nil from the handler means that the task is done; an error, or a
// panic, that it is tried again, after a wait, while it has retries left, and dead then, or at once with notify.ErrDead.
//
// The handler's context ends when the claim is lost, with ErrClaimLost as its cause, or after WorkerOptions.HandlerTimeout. A
// handler may be called again for a task that it has done, when the process, its host or the server went away before that was
// written down: see FinishTx.
//
// After the end of ctx Work gives back what is not begun, waits for the handlers, whose contexts end after StopTimeout, writes
// down what they did, and returns nil: not before they return, so that a handler which ignores its context holds it up. It
// reconnects after a loss of its session, without a limit; handlers go on meanwhile, for as long as their claims hold. What it
// can't mend is returned: notify.ErrOptions, a first connection that fails, ErrNotFound, notify.ErrNoState, notify.ErrDenied,
// notify.ErrClosed, errors of the server that are no passing ones; and, at the end, an error when handlers' results could not be
// written down: other workers will have those tasks again.
//
// It has a connection of its own until it has been idle for a minute; those that wait for tasks are shared by all workers and
// consumers of a DB. Close the queue after Work has returned. Each call is a worker of its own; WorkerOptions.Concurrency is
// cheaper than several.
func (q *Queue) Work(ctx context.Context, options WorkerOptions, handle func(ctx context.Context, task Task) error) error {
	w, err := newWorker(q, options)
	if err != nil {
		return err
	}
	return w.run(ctx, handle)
}

func newWorker(queue *Queue, options WorkerOptions) (*worker, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	return &worker{queue: queue, options: options, log: queue.log, idle: idleTimeout(options.Visibility)}, nil
}

// note calls WorkerOptions.Count.
func (w *worker) note(what string) {
	if w.options.Count != nil {
		w.options.Count(what)
	}
}

// idleTimeout is how long the server keeps the session of a worker whose host has vanished, and
// with it what the session has locked between two packets of a transaction, which others pass
// over: no longer than a claim holds, or a few touches more. Renewals keep a busy session alive.
func idleTimeout(visibility time.Duration) time.Duration {
	return min(max(visibility, 30*time.Second), 8*time.Hour)
}

func (w *worker) run(ctx context.Context, handler handler) error {
	if handler == nil {
		return optionsf("Work without a handler")
	}
	if w.queue.closed.Load() {
		return w.queue.error("work on", notify.ErrClosed)
	}
	if limit := w.options.HandlerTimeout; limit > 0 {
		handler = limited(handler, limit)
	}
	pool := newPool(w.options.Concurrency, handler, w.options.Backoff)
	pool.dropped = w.tooLate
	working, stop := w.linger(ctx)
	defer stop(context.Canceled)
	pool.start(working)
	defer pool.close()
	defer stop(context.Canceled) // first: the results of handlers are not written down any more
	waits := notify.Exponential(50*time.Millisecond, 5*time.Second)
	reached := false
	for {
		worked, err := w.connect(ctx, pool)
		switch {
		case err == nil:
			return nil
		case permanent(err):
			return w.queue.error("work on", err)
		case ctx.Err() != nil && len(pool.claims(true)) == 0:
			return nil // whatever the end of the context made of a statement under way
		case !reached && !worked:
			return w.queue.error("work on", err)
		case working.Err() != nil: // StopTimeout is over as well
			if unwritten := len(pool.claims(true)); unwritten > 0 {
				return w.queue.error("work on", fmt.Errorf("stopped with %d results not written down: %w", unwritten, err))
			}
			return nil
		}
		if worked {
			reached = true
			waits.Reset()
		}
		wait := waits.NextBackOff()
		w.log.WarnContext(ctx, "the worker lost its session and connects again", "error", err, "wait", wait)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-working.Done():
			timer.Stop()
		}
	}
}

// limited returns a handler whose context ends after the limit.
func limited(handler handler, limit time.Duration) handler {
	cause := fmt.Errorf("the handler took longer than %v", limit)
	return func(ctx context.Context, task Task) error {
		ctx, cancel := context.WithTimeoutCause(ctx, limit, cause)
		defer cancel()
		return handler(ctx, task)
	}
}

// tooLate counts an outcome that came when the claim was lost.
func (w *worker) tooLate(t Task) {
	w.note("lost")
	w.log.Warn("a task's result came after its claim was lost: others may do it again", "task", t.ID, "attempt", t.Attempt)
}

var errNoAnswer = errors.New("the server did not answer in time")

// permanent reports whether err would come again at the next try.
func permanent(err error) bool {
	if errors.Is(err, ErrNotFound) || errors.Is(err, notify.ErrOptions) {
		return true
	}
	transient := server.ConnectionLost(err) || server.Retryable(err) || server.ReadOnly(err) || server.Busy(err)
	return server.Number(err) != 0 && !transient
}

// linger is the handlers' context: it ends StopTimeout after ctx.
func (w *worker) linger(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	working, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		late := time.NewTimer(w.options.StopTimeout)
		defer late.Stop()
		select {
		case <-late.C:
			cancel(context.Cause(ctx))
		case <-working.Done():
		}
	})
	return working, func(cause error) {
		stop()
		cancel(cause)
	}
}

// connect works over one session. worked reports whether it began to claim tasks. A nil error means that ctx has ended and
// all results are written down.
func (w *worker) connect(ctx context.Context, pool *pool) (worked bool, err error) {
	connecting := ctx
	if ctx.Err() != nil { // there are results to write down
		var cancel context.CancelFunc
		connecting, cancel = context.WithTimeoutCause(context.WithoutCancel(ctx), answer, errNoAnswer)
		defer cancel()
	}
	session, err := core.NewSession(connecting, w.queue.db, core.SessionOptions{IdleTimeout: w.idle})
	if err != nil {
		return false, err
	}
	defer func() { _ = session.Close() }()
	var ordered bool
	err = session.Do(connecting, func(conn *sqlx.Conn) (err error) { // a connection of the pool would stay open for this
		ordered, err = w.queue.orderedOver(connecting, conn)
		return err
	})
	if err != nil {
		return false, err
	}
	store := &store{
		session: session, queue: w.queue.name, ordered: ordered, owner: w.options.Owner,
		visibility: w.options.Visibility, lapses: w.options.Lapses, discard: w.options.Discard, retried: func() { w.note("retried") }, log: w.log,
	}
	defer func() { _ = store.session.Close() }() // a worker that rested has another one
	if store.skip, err = store.skipLocked(ctx); err != nil {
		return false, err
	}
	if !store.skip && w.options.Claim == claimSkipLocked {
		return false, optionsf("the server has no SKIP LOCKED: use %q", claimUpdate)
	}
	store.skip = store.skip && w.options.Claim != claimUpdate
	some, err := store.abandoned(ctx, pool.claims(true))
	if err != nil {
		return false, err
	}
	pool.owes(some)
	waiter := core.NewAuto(w.queue.db, polled(w.queue.name, ordered), core.AutoOptions{Logger: w.log})
	defer func() { _ = waiter.Close() }()
	cancelled := core.NewAuto(w.queue.db, cancels(w.queue.name), core.AutoOptions{Logger: slog.New(slog.DiscardHandler)}) // the other one logs
	defer func() { _ = cancelled.Close() }()
	d := &dispatcher{
		worker: w, store: store, pool: pool, wakes: make(chan struct{}, 1), idle: make(chan struct{}, 1), cancels: make(chan struct{}, 1),
		contended: lockedWaits(), blocked: lockedWaits(), patience: firstPatience(w.options.Visibility),
	}
	return true, d.run(ctx, waiter, cancelled)
}

// polled is what a worker polls. It changes with the first task that is ready, also when that was claimed meanwhile and is ready again, with the first time at which a task falls
// due or a claim lapses, and, in an ordered queue, with the task in progress, because the next one waits for it. Source has one number for
// all of them.
func polled(queue string, ordered bool) core.Source {
	first := func(state string) string {
		return "COALESCE((SELECT MIN(state_at) FROM " + schema.TaskTable + forceClaim +
			" WHERE queue = ? AND state = '" + state + "' AND claim_order = 0), 0)"
	}
	parts := []string{
		// The index alone finds the task: the server would read the row of every entry that it steps over.
		"COALESCE((SELECT CONCAT(id, ':', attempts) FROM " + schema.TaskTable + byID + " WHERE id = (SELECT id FROM " + schema.TaskTable + forceClaim +
			" WHERE queue = ? AND state = 'ready' ORDER BY claim_order, state_at, id LIMIT 1)), 0)",
		first(stateScheduled), first(stateFailed), first(stateInProgress), "COALESCE((SELECT MIN(next_at) FROM " + schema.ScheduleTable + " WHERE queue = ?), 0)",
	}
	if ordered {
		parts = append(parts, "COALESCE((SELECT id FROM "+schema.TaskTable+forceClaim+" WHERE queue = ? AND state = 'in progress' LIMIT 1), 0)")
	}
	return core.Query("SELECT CRC32(CONCAT_WS(' ', "+strings.Join(parts, ", ")+"))",
		slices.Repeat([]any{queue}, len(parts))...).
		Of(schema.TaskTable, waiting.Insert)
}
