package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// standby bounds one wait for the group's lock; another follows.
const standby = 30 * time.Second

// lockIdle is the IdleTimeout of a session that one member uses alone.
const lockIdle = 45 * time.Second

// groupLease is how long a dead member keeps its group if several servers take writes.
const groupLease = 15 * time.Second

// appliesWithin is how long a member observes a server that may be a replica before it joins a group there.
const appliesWithin = time.Second

// errReplica ends the first attempt to join a group; later ones wait for a failover.
var errReplica = errors.New("this server is a replica of another: connect to the one that takes the writes, or read without a group")

// membership is the right to read for a group: its advisory lock, or a lease. It decides which
// member is active; the fence ensures that no other member moves the offset.
type membership struct {
	lock interface {
		Context(parent context.Context) (context.Context, context.CancelFunc)
	}
	// leave releases the membership.
	leave func() error
}

// groupLock is the name of the advisory lock that a group's active member holds.
func groupLock(database, topic, group string) string {
	return core.LockName("group", database, topic, group)
}

// join returns when this process is the group's active member. One session holds the locks of many groups. A member that
// must wait for the lock uses a session of its own, because the wait keeps the session busy.
func (l *connection) join(ctx context.Context, topic *table.Table) (*membership, error) {
	name := groupLock(topic.Schema, topic.Name, l.options.Group)
	caps, err := server.Discover(ctx, l.db.Pool())
	if err != nil {
		return nil, err
	}
	replica, err := caps.AppliesWithin(ctx, l.db.Pool(), appliesWithin)
	switch {
	case err != nil:
		return nil, err
	case replica:
		return nil, errReplica
	case caps.Galera || caps.MultiPrimary: // advisory locks are local to each server
		return l.lease(ctx, name)
	}
	if l.options.lockIdle == lockIdle {
		lock, release, err := core.SharedLock(ctx, l.db, name)
		if err == nil {
			return &membership{lock, release}, nil
		}
		if !errors.Is(err, notify.ErrNotAcquired) {
			return nil, l.notJoined(err)
		}
	}
	session, err := core.NewSession(ctx, l.db, core.SessionOptions{IdleTimeout: l.options.lockIdle})
	if err != nil {
		return nil, err
	}
	lock, err := l.standBy(ctx, session, name)
	if err != nil {
		_ = session.Close()
		return nil, err
	}
	return &membership{lock, session.Close}, nil
}

func (l *connection) notJoined(err error) error {
	return fmt.Errorf("consumer: join group %q: %w", l.options.Group, err)
}

// lease returns when this process has the group's lease.
func (l *connection) lease(ctx context.Context, name string) (*membership, error) {
	lease, err := guard.NewMutex(l.db, name, guard.MutexOptions{Kind: "lease", TTL: min(groupLease, l.options.lockIdle)})
	if err != nil {
		return nil, l.notJoined(err)
	}
	held, err := lease.TryLock(ctx)
	if errors.Is(err, notify.ErrNotAcquired) {
		l.standsBy(ctx)
		held, err = lease.Lock(ctx)
	}
	if errors.Is(err, notify.ErrNoState) {
		err = notify.ErrNoState
	}
	if err != nil {
		return nil, l.notJoined(err)
	}
	return &membership{held, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), snapshotTime)
		defer cancel()
		if err := held.Release(ctx); err != nil && !errors.Is(err, notify.ErrLockLost) {
			return err
		}
		return nil
	}}, nil
}

// standBy returns when the session has the group's lock.
func (l *connection) standBy(ctx context.Context, session *core.Session, name string) (*core.Lock, error) {
	lock, err := session.TryLock(ctx, name)
	if errors.Is(err, notify.ErrNotAcquired) {
		l.standsBy(ctx)
	}
	for errors.Is(err, notify.ErrNotAcquired) {
		lock, err = session.Lock(ctx, name, standby)
	}
	if err != nil {
		return nil, l.notJoined(err)
	}
	return lock, nil
}

func (l *connection) standsBy(ctx context.Context) {
	l.stoodBy, l.joined = true, true
	l.log.InfoContext(ctx, "standing by: another member of the group is active")
}
