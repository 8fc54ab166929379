package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// standby is how long one wait for the group's lock lasts.
const standby = 30 * time.Second

// lockIdle is the IdleTimeout of a session of a member's own.
const lockIdle = 45 * time.Second

// membership is the right to read for a group: its advisory lock. It says who
// should work; that nobody else moves the offset is the fence's part.
type membership struct {
	lock *notify.Lock
	// leave lets the next member in.
	leave func() error
}

// GroupLock is the name of the advisory lock that a group's active member holds.
func GroupLock(database, topic, group string) string {
	return notify.LockName("group", database, topic, group)
}

// join returns when this process is the group's active member. The locks of many groups are on one session. A member that
// has to wait for the lock takes a session of its own, because the wait keeps the session busy.
func join(ctx context.Context, db *notify.DB, topic *table.Table, options Options) (*membership, error) {
	name := GroupLock(topic.Schema, topic.Name, options.Group)
	if options.lockIdle == lockIdle {
		lock, release, err := db.SharedLock(ctx, name)
		if err == nil {
			return &membership{lock, release}, nil
		}
		if !errors.Is(err, notify.ErrNotAcquired) {
			return nil, fmt.Errorf("consumer: join group %q: %w", options.Group, err)
		}
	}
	session, err := db.Session(ctx, notify.SessionOptions{IdleTimeout: options.lockIdle})
	if err != nil {
		return nil, err
	}
	lock, err := standBy(ctx, session, name, options)
	if err != nil {
		_ = session.Close()
		return nil, err
	}
	return &membership{lock, session.Close}, nil
}

// standBy returns when the session has the group's lock.
func standBy(ctx context.Context, session *notify.Session, name string, options Options) (*notify.Lock, error) {
	lock, err := session.TryLock(ctx, name)
	if errors.Is(err, notify.ErrNotAcquired) {
		options.Logger.InfoContext(ctx, "standing by: another member of the group is active")
	}
	for errors.Is(err, notify.ErrNotAcquired) {
		lock, err = session.Lock(ctx, name, standby)
	}
	if err != nil {
		return nil, fmt.Errorf("consumer: join group %q: %w", options.Group, err)
	}
	return lock, nil
}
