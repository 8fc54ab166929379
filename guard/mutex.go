package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

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
	//   - "advisory", or "", is GET_LOCK. It needs no table and no privilege. Each holder, and each waiter, has a connection of its
	//     own. It is free as soon as the server sees its holder's end, and goes to the one that has waited longest. It has no
	//     fencing token, and does not outlive its connection.
	//   - "lease" is a row that expires. It needs no connection while it is held: the process that took it may end, and another one
	//     resume or release it with its token, which is a fencing token.
	//   - "row" is a row that is there while the mutex is held. It has no token and no end: when its holder dies it stays taken until
	//     Break is called. A holder learns that its lock was broken when it releases the lock.
	//   - "flag" is a boolean in a row: the same with a fencing token.
	//
	// All but "advisory" are in tables that `mqnotify init` makes.
	Kind string
	// TTL is how long others wait when the holder dies. 0 means 30 s. A lease lasts that long after it was taken or renewed, by the
	// server's clock: give 50 ms or more; some ten times what a statement may take at the worst is a good value. An advisory lock
	// of a host that vanished is free after it: give 3 s or more. A row and a flag have none.
	TTL time.Duration
	// Margin is how much sooner a lease's holder counts it as lost, for clocks that
	// run at different speeds, and to have stopped before another one begins. 0 means a
	// sixth of TTL; half of TTL is the most. The other kinds have none.
	Margin time.Duration
}

// Mutex is a lock that one holder has at a time, of all machines that use the database. It knows no owner by goroutine or
// process, and its holder can't take it twice. Safe for concurrent use.
type Mutex struct {
	kind interface {
		tryLock(ctx context.Context) (Held, error)
		await(ctx context.Context) (Held, error)
	}
}

// NewMutex returns the mutex of a name of 1 to 255 characters in the DB's database. It does not connect. Its errors are of
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

// TryLock takes the lock if it is free. notify.ErrNotAcquired says that it is not.
//
// A lease is renewed in the background, a third of TTL after the last time, until Release or its loss. When ctx ends in the
// middle, TryLock takes back what it may have got: of a row or a flag it waits for the server's answer for a second first. A server
// that does not answer in this time may still take the lock, for no caller: a lease until it expires, a row or a flag until Break.
//
// ErrUnsafe says, of an advisory lock, that other servers, where the lock does not reach, take writes too: a node of Galera, a member of a
// group with several primaries, a replica. On MySQL an account without SELECT on performance_schema.replication_applier_status
// sees that a server is a replica only by what it applies: where it has applied anything ever, that is watched for a second first.
func (m *Mutex) TryLock(ctx context.Context) (Held, error) { return m.kind.tryLock(ctx) }

// Lock waits for the lock until ctx ends; the error then has the cause of ctx, and notify.ErrNotAcquired if another holder had
// the lock, or the error that kept it from asking. Its other errors are those of TryLock.
//
// For an advisory lock it waits in the server, first come first served, and after a restart of the server it waits again. The
// others are tried again and again, with waits of 5 to 250 ms, in no order.
func (m *Mutex) Lock(ctx context.Context) (Held, error) { return m.kind.await(ctx) }

// lease returns the lease of a mutex that is one.
func (m *Mutex) lease() (*lease, error) {
	if l, is := m.kind.(*lease); is {
		return l, nil
	}
	return nil, wrongf("the mutex is no lease: give Kind: %q", kindLease)
}

// Take takes a lease for TTL and returns its token, which is all that is needed to
// Resume or Release it, in another process too. Nothing renews it. notify.ErrNotAcquired says
// that it is held. After another error it may be taken, until it expires; when ctx
// ends in the middle Take tries for a second to take that back. Other kinds are an error of notify.ErrOptions.
//
// When Take loses its connection it sends the statement again over another one. The server
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

// Resume goes on with a lease that was taken before, by this process or another one:
// it renews it, and has it renewed in the background from then on. One process at a
// time should. A *TokenError says that the token does not hold it. Other kinds are an error of notify.ErrOptions.
func (m *Mutex) Resume(ctx context.Context, token uint64) (Held, error) {
	l, err := m.lease()
	if err != nil {
		return nil, err
	}
	return l.resume(ctx, token)
}

// Release lets a lease go that was taken with the token, in whatever process; others
// can take it at once. A *TokenError says that the token does not hold
// it: it has expired, was released, or the token is another taker's. The owner of a Held
// calls Held.Release instead. Other kinds are an error of notify.ErrOptions.
func (m *Mutex) Release(ctx context.Context, token uint64) error {
	l, err := m.lease()
	if err != nil {
		return err
	}
	return explain("release", l.name, l.release(ctx, token, time.Time{}))
}

// Fence makes the caller's transaction depend on a lease: it changes the lease's row,
// and no process can take the lease, or renew it, before the transaction ends. So what the
// transaction commits was done by the lease's one holder, whatever its clock, its
// network, or the time that it was stopped for. Call it just before the commit, since it
// holds up renewals. A *TokenError says that the token does not hold the
// lease; the caller rolls back. Other kinds are an error of notify.ErrOptions.
//
// Begin the transaction READ COMMITTED: under REPEATABLE READ MariaDB since 11.6.2
// (innodb_snapshot_isolation) refuses it, with error 1020, once the lease was renewed after
// the transaction's first read.
//
// On Galera, or a group with several primaries, others can take the lease on another
// server meanwhile. What is committed later is refused there: this transaction, at its
// commit, or that.
func (m *Mutex) Fence(ctx context.Context, tx notify.Tx, token uint64) error {
	l, err := m.lease()
	if err != nil {
		return err
	}
	return l.fence(ctx, tx, token)
}

// Break releases the lock of any holder of a row or a flag, and reports whether it was held. Use it if the
// holder is known to be dead. If the connection ends, Break returns an error, and the lock
// may be broken: check which holder it has before you break it again. Other kinds, which end by themselves, are an error of notify.ErrOptions.
func (m *Mutex) Break(ctx context.Context) (bool, error) {
	s, is := m.kind.(*simple)
	if !is {
		return false, wrongf("only a mutex of kind %s or %s can be broken: the others end with their holder", kindRow, kindFlag)
	}
	return s.breakLock(ctx)
}

// Held is a lock that was got. Its methods may be called at the same time. The
// caller releases it.
type Held interface {
	// Token is the fencing token: larger than that of every holder before. A resource
	// that remembers the largest it has seen, and refuses smaller ones, is safe from a
	// holder that does not know yet that it is one no more. 0 is none: a mutex of kind
	// advisory or row has no token.
	Token() uint64
	// Err is notify.ErrLockLost with its reason once the lock is lost, nil before.
	Err() error
	// Context returns a copy of parent that is cancelled, with notify.ErrLockLost in its
	// cause, when the lock is lost, and not when it is released. The caller calls cancel when done with it.
	Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc)
	// Release lets the lock go, even if ctx has ended. notify.ErrLockLost says that it was not
	// held any more: another holder may have worked at the same time. Release may be
	// called twice.
	Release(ctx context.Context) error
}

// With runs f while the lock is held, with a context that ends when it is lost, and
// releases it. The error is f's, or that the lock was not got, or was lost.
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

// persist tries until the lock is got, something fails, or ctx ends. The waits grow
// from 5 to 250 ms, and half of each is random, so that callers do not try all at
// once. There is no queue: any of them may get the lock first.
func persist(ctx context.Context, try func(ctx context.Context) (Held, error)) (Held, error) {
	waits := &notify.Fibonacci{Min: 5 * time.Millisecond, Max: 250 * time.Millisecond, Jitter: 0.5}
	var refused error
	for {
		held, err := try(ctx)
		switch {
		case errors.Is(err, notify.ErrNotAcquired):
			refused = err
		case err == nil || ctx.Err() == nil || refused == nil || errors.Is(err, errAfter):
			return held, err
		}
		if cause := pause(ctx, waits.NextBackOff()); cause != nil {
			return nil, fmt.Errorf("%w: %w", refused, cause)
		}
	}
}

// grip is what every Held in a table has.
type grip struct {
	name  string
	token uint64
	once  sync.Once
	lost  chan struct{}
	cause error
}

func newGrip(name string, token uint64) grip {
	return grip{name: name, token: token, lost: make(chan struct{})}
}

func (g *grip) Token() uint64 { return g.token }

func (g *grip) Err() error {
	select {
	case <-g.lost:
		return g.cause
	default:
		return nil
	}
}

// lose tells everybody that the lock is gone.
func (g *grip) lose(cause error) {
	g.once.Do(func() {
		g.cause = fmt.Errorf("guard: lock %q: %w: %w", g.name, notify.ErrLockLost, cause)
		close(g.lost)
	})
}

func (g *grip) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancelCause := context.WithCancelCause(parent)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-g.lost:
			cancelCause(g.cause)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancelCause(context.Canceled)
		<-done
	}
}
