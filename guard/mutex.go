package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// The kinds of a Mutex.
const (
	kindAdvisory = "advisory"
	kindLease    = "lease"
	kindRow      = "row"
	kindFlag     = "flag"
)

// MutexOptions are the settings of a Mutex. The zero value is an advisory lock.
type MutexOptions struct {
	// Kind is how the mutex works; docs/guide/choosing.md compares the four.
	//
	//   - "advisory", or "", is GET_LOCK. It needs no table and no privilege. Every holder, and every waiter, has a connection of
	//     its own. It is free as soon as the server notices its holder's end, and goes to the session that has waited longest. It
	//     has no fencing token, and ends with its connection.
	//   - "lease" is a row that expires. It needs no connection while it is held: the process that took it may end, and another one
	//     may resume or release it with its token, which is a fencing token.
	//   - "row" is a row that exists while the mutex is held. It has no token and does not expire: if its holder dies it stays taken
	//     until Break is called. A holder learns that its lock was broken when it releases the lock.
	//   - "flag" is a boolean in a row: the same with a fencing token.
	//
	// All but "advisory" use tables that `mqnotify init` creates.
	Kind string
	// TTL is how long other processes wait after the holder dies. 0 means 30 s. A lease lasts that long after it was taken or
	// renewed, by the server's clock: at least 50 ms; about ten times the longest duration of a statement is a good value. An
	// advisory lock is free that long after its host vanished: at least 3 s. The kinds row and flag have no TTL.
	TTL time.Duration
	// Margin is how much earlier a lease's holder counts it as lost. It covers clocks that
	// run at different speeds, and gives the holder time to stop before another one begins. 0 means a
	// sixth of TTL; the maximum is half of TTL. The other kinds have no Margin.
	Margin time.Duration
}

// Mutex is a lock that has one holder at a time among all machines that use the database. It does not know its owner's goroutine or
// process, and its holder can't take it twice. Safe for concurrent use.
type Mutex struct {
	kind interface {
		tryLock(ctx context.Context) (Held, error)
		await(ctx context.Context) (Held, error)
	}
}

// NewMutex returns the mutex of a name of 1 to 255 characters in the DB's database. It does not connect. Its errors are
// notify.ErrOptions.
func NewMutex(db *notify.DB, name string, options MutexOptions) (*Mutex, error) {
	if err := checkName("name", name); err != nil {
		return nil, err
	}
	m := new(Mutex)
	var err error
	switch options.Kind {
	case "", kindAdvisory:
		m.kind, err = newAdvisory(db, name, options)
	case kindLease:
		m.kind, err = newLease(db, name, options)
	case kindRow, kindFlag:
		if options.TTL != 0 || options.Margin != 0 {
			err = wrongf("a mutex of kind %s with a TTL or a Margin: it does not end by itself, so give none", options.Kind)
		}
		m.kind = newRow(db, name)
		if options.Kind == kindFlag {
			m.kind = newFlag(db, name)
		}
	default:
		err = wrongf("a mutex of kind %q: give %s, %s, %s or %s", options.Kind, kindAdvisory, kindLease, kindRow, kindFlag)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// TryLock takes the lock if it is free. notify.ErrNotAcquired means that it is not.
//
// A goroutine renews a lease, a third of TTL after the last time, until Release or its loss. If ctx ends during the
// call, TryLock releases the lock that it may have taken; with a row or a flag it first waits up to a second for the server's answer.
// If the server does not answer in this time, it may still take the lock, which then has no holder: a lease until it expires, a row
// or a flag until Break.
//
// ErrUnsafe means that an advisory lock does not reach other servers that take writes: the server is a node of Galera, a member of a
// group with several primaries, or a replica. On MySQL an account without SELECT on performance_schema.replication_applier_status
// can detect a replica only by the transactions that it applies. If the server has ever applied any, TryLock observes it for a second
// first.
func (m *Mutex) TryLock(ctx context.Context) (Held, error) { return m.kind.tryLock(ctx) }

// Lock waits for the lock until ctx ends. The error then has the cause of ctx, and notify.ErrNotAcquired if another holder had
// the lock, or the error that kept Lock from asking. Its other errors are those of TryLock.
//
// Lock waits for an advisory lock in the server, first come first served. After a restart of the server it waits again. It tries to
// take the other kinds repeatedly, with waits of 5 to 250 ms, and waiters get them in no particular order.
func (m *Mutex) Lock(ctx context.Context) (Held, error) { return m.kind.await(ctx) }

// lease returns the lease of a mutex of kind lease.
func (m *Mutex) lease() (*lease, error) {
	if l, is := m.kind.(*lease); is {
		return l, nil
	}
	return nil, wrongf("the mutex is not a lease: set Kind to %q", kindLease)
}

// Take takes a lease for TTL and returns its token, with which this or another process can
// Resume or Release it. Nothing renews it. notify.ErrNotAcquired means
// that it is held. After another error it may be taken, until it expires. If ctx
// ends during the call, Take tries for a second to release it. Other kinds are a notify.ErrOptions.
//
// If Take loses its connection, it repeats the statement over another one. The server
// may still run the first statement after Take has returned. If the lease is free then, it
// is held until it expires, by no process.
func (m *Mutex) Take(ctx context.Context) (token uint64, err error) {
	l, err := m.lease()
	if err != nil {
		return 0, err
	}
	_, token, err = l.take(ctx)
	return token, err
}

// Resume continues a lease that was taken before, by this process or another one:
// it renews the lease, and a goroutine then keeps it renewed. Only one process at a
// time should do so. A *TokenError means that the token does not hold the lease. Other kinds are a notify.ErrOptions.
func (m *Mutex) Resume(ctx context.Context, token uint64) (Held, error) {
	l, err := m.lease()
	if err != nil {
		return nil, err
	}
	return l.resume(ctx, token)
}

// Release releases a lease that was taken with the token, in any process; others
// can take it at once. A *TokenError means that the token does not hold
// the lease: it has expired, was released, or the token belongs to another holder. The owner of a Held
// calls Held.Release instead. Other kinds are a notify.ErrOptions.
func (m *Mutex) Release(ctx context.Context, token uint64) error {
	l, err := m.lease()
	if err != nil {
		return err
	}
	return explain("release", l.name, l.release(ctx, token, time.Time{}))
}

// Fence makes the caller's transaction depend on a lease. It changes the lease's row,
// so no process can take the lease, or renew it, before the transaction ends. What the
// transaction commits was therefore done by the lease's only holder, whatever its clock, its
// network, or an interruption of its process. Call it just before the commit, because it
// delays renewals. A *TokenError means that the token does not hold the
// lease; the caller must roll back. Other kinds are a notify.ErrOptions.
//
// Begin the transaction READ COMMITTED: under REPEATABLE READ MariaDB since 11.6.2
// (innodb_snapshot_isolation) refuses it, with error 1020, if the lease was renewed after
// the transaction's first read.
//
// On Galera, or a group with several primaries, another process can take the lease on another
// server in the meantime. The later commit is then refused: that of this transaction, or that
// of the other lease.
func (m *Mutex) Fence(ctx context.Context, tx notify.Tx, token uint64) error {
	l, err := m.lease()
	if err != nil {
		return err
	}
	return l.fence(ctx, tx, token)
}

// Break releases the lock of any holder of a row or a flag, and reports whether it was held. Use it only if the
// holder is known to be dead. If the connection is lost, Break returns an error, and the lock
// may be broken: check its holder before you break it again. The other kinds end by themselves and are a notify.ErrOptions.
func (m *Mutex) Break(ctx context.Context) (bool, error) {
	s, is := m.kind.(*simple)
	if !is {
		return false, wrongf("only a mutex of kind %s or %s can be broken: the others end with their holder", kindRow, kindFlag)
	}
	return s.breakLock(ctx)
}

// Held is a lock that the caller holds. Its methods are safe for concurrent use. The
// caller must release it.
type Held interface {
	// Token is the fencing token: larger than those of all earlier holders. A resource
	// that remembers the largest token it has seen, and refuses smaller ones, is safe from a
	// former holder that does not yet know that it has lost the lock. 0 means none: the kinds
	// advisory and row have no token.
	Token() uint64
	// Err returns notify.ErrLockLost with its reason when the lock is lost, and nil before.
	Err() error
	// Context returns a copy of parent that is cancelled, with notify.ErrLockLost in its
	// cause, when the lock is lost, but not when it is released. The caller must call cancel when it no longer needs the
	// context.
	Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc)
	// Release releases the lock, even if ctx has ended. notify.ErrLockLost means that the caller no
	// longer held it: another holder may have worked at the same time. Release may be
	// called twice.
	Release(ctx context.Context) error
}

// With runs f while it holds the lock, with a context that ends when the lock is lost, and then
// releases the lock. It returns f's error, or that the lock was not taken, or was lost.
func With(ctx context.Context, m *Mutex, f func(ctx context.Context) error) error {
	held, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = held.Release(ctx) }() // if f panics
	working, cancel := held.Context(ctx)
	defer cancel()
	err = f(working)
	return errors.Join(err, held.Release(ctx))
}

// persist tries until it gets the lock, an error occurs, or ctx ends. Once the server has answered, its absence is no error. The waits
// grow from 5 to 250 ms, and half of each is random, so that callers do not try at the same time. There is no queue: any of them may
// get the lock first.
func persist(ctx context.Context, try func(ctx context.Context) (Held, error)) (Held, error) {
	waits := &notify.Fibonacci{Min: 5 * time.Millisecond, Max: 250 * time.Millisecond, Jitter: 0.5}
	var refused, last error
	for {
		held, err := try(ctx)
		switch {
		case errors.Is(err, notify.ErrNotAcquired):
			refused, last = err, err
		case refused != nil && ctx.Err() == nil && (server.ConnectionLost(err) || server.Busy(err) || server.ReadOnly(err)):
			last = err
		case err == nil || ctx.Err() == nil || refused == nil || errors.Is(err, errAfter):
			return held, err
		}
		if cause := server.Pause(ctx, waits.NextBackOff()); cause != nil {
			return nil, fmt.Errorf("%w: %w", last, cause)
		}
	}
}

// grip is the part that is common to all Helds in a table.
type grip struct {
	*core.Loss
	name  string
	token uint64
}

func newGrip(name string, token uint64) grip { return grip{core.NewLoss(), name, token} }

func (g *grip) Token() uint64 { return g.token }

// lose marks the lock as lost.
func (g *grip) lose(cause error) {
	g.Lose(fmt.Errorf("guard: lock %q: %w: %w", g.name, notify.ErrLockLost, cause))
}
