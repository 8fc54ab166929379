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

// handler handles a task.
type handler = func(ctx context.Context, task Task) error

// worker claims the tasks of a queue and hands them to a handler.
type worker struct {
	queue   *Queue
	options WorkerOptions
	log     *slog.Logger
	idle    time.Duration // its session's IdleTimeout
	answer  time.Duration // how long a packet of statements may take
	atOnce  int           // the most tasks that the next claim asks for; 0 means no limit
	longer  int           // how often the claim of one task had no answer; each time doubles how long the packets of the next session may take
	// unanswered is until when a claim without an answer may still be committed, after the worker has looked for its tasks: a COMMIT
	// can wait for a replica.
	unanswered time.Time
}

// Work claims tasks and handles them until ctx ends. If the handler returns nil, the task is done. After an error, or a
// panic, the task is tried again, after a wait, as long as it has retries left; after the last one, or at once with notify.ErrDead,
// it is dead.
//
// The handler's context ends when the claim is lost, with ErrClaimLost as its cause, or after WorkerOptions.HandlerTimeout. A
// handler may be called again for a task that it has done, if the process, its host or the server failed before the outcome was
// stored: see FinishTx.
//
// After the end of ctx Work gives back the tasks that are not begun, waits for the handlers, whose contexts end after StopTimeout,
// stores their outcomes, and returns nil. It does not return before the handlers do, even if one ignores its context. It
// reconnects after a loss of its session, without a limit; handlers continue meanwhile, as long as their claims hold. It returns
// errors that another attempt would repeat: notify.ErrOptions, a failed first connection, ErrNotFound, notify.ErrNoState,
// notify.ErrVersion, notify.ErrDenied, notify.ErrClosed, and lasting errors of the server. At the end it returns an error if outcomes of handlers could
// not be stored: other workers will then handle those tasks again.
//
// Work has a connection of its own until it has been idle for a minute; all workers and consumers of a DB share the connections
// that wait for tasks. Close the queue after Work has returned. Every call is a worker of its own; WorkerOptions.Concurrency is
// cheaper than several calls.
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
	return &worker{queue: queue, options: options, log: queue.log, idle: idleTimeout(options.Visibility), answer: defaultAnswer}, nil
}

// note calls WorkerOptions.Count.
func (w *worker) note(what string) {
	if w.options.Count != nil {
		w.options.Count(what)
	}
}

// idleTimeout returns how long the server keeps the session of a worker whose host has vanished, and
// with it the rows that the session has locked between two packets of a transaction, which other workers skip.
// It is as long as a claim holds, but at least 30 s and at most 8 hours. Renewals keep a busy session alive.
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
	working, stop := server.Linger(ctx, w.options.StopTimeout)
	defer stop()
	pool.start(working)
	defer pool.close()
	defer stop() // before close: outcomes of handlers can no longer be stored
	defer context.AfterFunc(ctx, pool.release)()
	waits := notify.Exponential(50*time.Millisecond, 5*time.Second)
	reached := false
	for {
		begun := time.Now()
		worked, err := w.connect(ctx, working, pool)
		switch {
		case err == nil:
			return nil
		case permanent(err):
			return w.queue.error("work on", err)
		case ctx.Err() != nil && len(pool.claims(true)) == 0:
			return nil // the error is an effect of the end of ctx
		case !reached && !worked:
			return w.queue.error("work on", err)
		case working.Err() != nil: // StopTimeout is over as well
			if unwritten := pool.begun(); unwritten > 0 {
				return w.queue.error("work on", fmt.Errorf("stopped with %d results not stored: %w", unwritten, err))
			}
			return nil
		}
		reached = reached || worked
		if time.Since(begun) > time.Second { // otherwise the server may have no connection or no space left
			waits.Reset()
		}
		wait := waits.NextBackOff()
		w.log.WarnContext(ctx, "the worker lost its session and reconnects", "error", err, "wait", wait)
		_ = server.Pause(working, wait)
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

// tooLate counts an outcome that came after the claim was lost.
func (w *worker) tooLate(t Task) {
	w.note("lost")
	w.log.Warn("a task's outcome came after its claim was lost: another worker may do it again", "task", t.ID, "attempt", t.Attempt)
}

var errNoAnswer = errors.New("the server did not answer in time")

// permanent reports whether another attempt would fail with err again.
func permanent(err error) bool {
	return errors.Is(err, ErrNotFound) || errors.Is(err, notify.ErrOptions) || errors.Is(err, notify.ErrVersion) || server.Permanent(err)
}

// connect works over one session. worked reports whether it began to claim tasks. A nil error means that ctx has ended and
// all outcomes are stored. working ends after StopTimeout.
func (w *worker) connect(ctx, working context.Context, pool *pool) (worked bool, err error) {
	connecting := ctx
	if ctx.Err() != nil { // there are outcomes to store
		var cancel context.CancelFunc
		connecting, cancel = context.WithTimeoutCause(context.WithoutCancel(ctx), w.answer, errNoAnswer)
		defer cancel()
	}
	session, err := core.NewSession(connecting, w.queue.db, core.SessionOptions{IdleTimeout: w.idle})
	if err != nil {
		return false, err
	}
	defer func() { _ = session.Close() }()
	var ordered bool
	err = session.Do(connecting, func(conn *sqlx.Conn) (err error) { // not over the pool, whose connection would stay open
		ordered, err = w.queue.orderedOver(connecting, conn)
		return err
	})
	if err != nil {
		return false, err
	}
	store := &store{
		session: session, queue: w.queue.name, ordered: ordered, owner: w.options.Owner,
		visibility: w.options.Visibility, answer: w.answer << w.longer, lapses: w.options.Lapses, discard: w.options.Discard, retried: func() { w.note("retried") }, log: w.log,
		locked: map[string]time.Time{},
	}
	defer func() { _ = store.session.Close() }() // not the session above if the worker has rested
	if store.skip, err = store.skipLocked(ctx); err != nil {
		return false, err
	}
	if !store.skip && w.options.Claim == claimSkipLocked {
		return false, optionsf("the server has no SKIP LOCKED: use %q", claimUpdate)
	}
	store.skips, store.skip = store.skip, store.skip && w.options.Claim != claimUpdate
	some, err := store.abandoned(ctx, pool.known())
	if err != nil {
		return false, err
	}
	if some {
		w.queue.changed()
	}
	waiter := core.NewAuto(w.queue.db, polled(w.queue.name, ordered), core.AutoOptions{Logger: w.log})
	defer func() { _ = waiter.Close() }()
	cancelled := core.NewAuto(w.queue.db, cancels(w.queue.name), core.AutoOptions{Logger: slog.New(slog.DiscardHandler)}) // the other one logs
	defer func() { _ = cancelled.Close() }()
	d := &dispatcher{
		worker: w, store: store, pool: pool, wakes: make(chan struct{}, 1), idle: make(chan struct{}, 1), cancels: make(chan struct{}, 1),
		over: func() bool { return working.Err() != nil }, contended: lockedWaits(), blocked: lockedWaits(), patience: firstPatience(w.options.Visibility),
	}
	return true, d.run(ctx, waiter, cancelled)
}

// polled is the query that a worker polls. Its value changes with the first task that is ready, even if that was claimed in the
// meantime and is ready again; with the first time at which a task falls due or a claim lapses; and, in an ordered queue, with the
// task in progress, because the next one waits for it. A Source has one number, so it is a checksum of all of these.
func polled(queue string, ordered bool) core.Source {
	first := func(state string) string {
		return "COALESCE((SELECT MIN(state_at) FROM " + schema.TaskTable + forceClaim +
			" WHERE queue = ? AND state = '" + state + "' AND claim_order = 0), 0)"
	}
	parts := []string{
		// The inner query uses only the index; otherwise the server would read the row of every entry that it steps over.
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
