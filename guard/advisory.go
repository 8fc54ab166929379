package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// leastIdle is the minimum TTL of an advisory lock, because the server counts in seconds.
const leastIdle = 3 * time.Second

// advisory is the mutex of an advisory lock. Every holder, and every waiter, has a connection of its own.
type advisory struct {
	db   *notify.DB
	name string
	idle time.Duration // 0: core's default, 30 s
}

func newAdvisory(db *notify.DB, name string, options MutexOptions) (*advisory, error) {
	if options.TTL != 0 && (options.TTL < leastIdle || options.TTL > longest) || options.Margin != 0 {
		return nil, wrongf("an advisory lock's TTL of %v with a Margin of %v: give %v or more, or 0 for 30s, and no Margin", options.TTL, options.Margin, leastIdle)
	}
	return &advisory{db, name, options.TTL}, nil
}

func (a *advisory) tryLock(ctx context.Context) (Held, error) { return a.lock(ctx, 0) }

// await waits in the server. After a restart of the server it waits again.
func (a *advisory) await(ctx context.Context) (Held, error) { return a.lock(ctx, longest) }

func (a *advisory) lock(ctx context.Context, timeout time.Duration) (Held, error) {
	waits := &notify.Fibonacci{Min: 10 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.1}
	for reached, before := false, false; ; { // before: an earlier session has asked for the lock
		waited := false // whether the session has asked for the lock with a wait
		session, err := core.NewSession(ctx, a.db, core.SessionOptions{IdleTimeout: a.idle})
		if err == nil {
			reached = true
			var lock *core.Lock
			var asked bool
			if lock, asked, err = a.acquire(ctx, session, timeout); err == nil {
				return &heldAdvisory{Lock: lock, session: session, name: a.name}, nil
			}
			_ = session.Close() // frees whatever it holds
			waited = asked && timeout > 0
			before = before || asked
		}
		// Wait again after a restart of the server, which may be read-only at first.
		passes := server.ConnectionLost(err) || server.Busy(err) || before && errors.Is(err, errReadOnly)
		if timeout == 0 || !reached || ctx.Err() != nil || !passes {
			return nil, a.explain(ctx, waited, err)
		}
		retried.Add(1)
		if ended := server.Pause(ctx, waits.NextBackOff()); ended != nil {
			return nil, explain("lock", a.name, fmt.Errorf("%w: %w", ended, err))
		}
	}
}

// explain replaces an error that the end of ctx has caused by its cause. If the caller has asked for the lock and waited until then,
// the error is also notify.ErrNotAcquired.
func (a *advisory) explain(ctx context.Context, waited bool, err error) error {
	switch {
	case ctx.Err() == nil:
	case waited:
		err = fmt.Errorf("%w: %w", notify.ErrNotAcquired, context.Cause(ctx))
	default:
		err = context.Cause(ctx)
	}
	return explain("lock", a.name, err)
}

// appliesWithin is how long acquire observes whether a server that may be a replica applies transactions.
const appliesWithin = time.Second

var errReplica = fmt.Errorf("%w: this server is a replica of another: connect to the one that takes the writes", ErrUnsafe)

var errReadOnly = fmt.Errorf("%w: the server is read-only, as a replica is: connect to the one that takes the writes", ErrUnsafe)

// acquire takes the lock if the server's advisory locks exclude all other holders. asked reports whether it has asked for the lock.
func (a *advisory) acquire(ctx context.Context, session *core.Session, timeout time.Duration) (lock *core.Lock, asked bool, err error) {
	caps := session.Capabilities()
	var applies bool
	err = session.Do(ctx, func(conn *sqlx.Conn) (err error) {
		applies, err = caps.AppliesWithin(ctx, conn, appliesWithin)
		return err
	})
	switch {
	case err != nil:
		return nil, false, err
	case applies:
		return nil, false, errReplica
	case caps.ReadOnly && !caps.Galera && !caps.MultiPrimary && !caps.Replica:
		return nil, false, errReadOnly
	case caps.WritersElsewhere():
		return nil, false, fmt.Errorf("%w: take a lease", ErrUnsafe)
	}
	lock, err = session.Lock(ctx, core.LockName("mutex", core.Folded(caps, a.db.Name()), a.name), timeout)
	if err != nil {
		return nil, true, err
	}
	// This detects a proxy that distributes statements to several sessions.
	held, err := lock.Held(ctx)
	if err == nil && !held {
		err = fmt.Errorf("%w: another session answers, as behind a proxy that shares connections", ErrUnsafe)
	}
	return lock, true, err
}

type heldAdvisory struct {
	*core.Lock
	session *core.Session
	name    string
	once    sync.Once
	err     error
}

func (*heldAdvisory) Token() uint64 { return 0 }

func (h *heldAdvisory) Release(ctx context.Context) error {
	h.once.Do(func() {
		h.err = h.Lock.Release(ctx)
		if closing := h.session.Close(); h.err == nil {
			h.err = closing
		}
		h.err = explain("release", h.name, h.err)
	})
	return h.err
}
