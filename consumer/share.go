package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// errRebalance ends an assignment because the member's partitions change.
var errRebalance = errors.New("the group's partitions are redistributed")

// share is run for a shared group. It reads and handles the member's partitions in one assignment after another, and meanwhile checks
// which member has which partition.
func (l *connection) share(ctx context.Context, t *table.Table) error {
	session, err := core.NewSession(ctx, l.db, core.SessionOptions{IdleTimeout: l.options.lockIdle})
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	caps := session.Capabilities()
	replica, err := caps.AppliesWithin(ctx, l.db.Pool(), appliesWithin)
	switch {
	case err != nil:
		return err
	case replica:
		return errReplica
	case caps.Galera || caps.MultiPrimary:
		return fmt.Errorf("consumer: %w: the members of a group can't share it where several servers take writes, because each has "+
			"advisory locks of its own: leave MembersShare (--members-share) out, and one member at a time is active", notify.ErrOptions)
	}
	sharing, err := l.sharing(ctx, session, t)
	if err != nil {
		return err
	}
	m := newMember(sharing, session, t.Schema, l.options)
	if err := m.enter(ctx, func() { l.stoodBy, l.joined = true, true }); err != nil {
		return err
	}
	// The handler's context ends with the lock's loss, even after ctx has ended.
	handling, release := m.slot.Context(context.WithoutCancel(ctx))
	defer release()
	ctx, releaseCtx := m.slot.Context(ctx)
	defer releaseCtx()

	var now *assignment // nil without partitions
	defer func() {
		if now != nil {
			_ = now.end()
		}
	}()
	for change := false; ; {
		s, err := m.snapshot(ctx)
		if err == nil {
			err = m.settleCoordinator(ctx, s)
		}
		if err != nil {
			return err
		}
		if now.over() {
			if now.err != errRebalance { //nolint:errorlint // a joined error is more than the end of an assignment
				return now.err
			}
			now = nil
		}
		surplus := m.surplus(s)
		taken, err := m.take(ctx, s)
		if err != nil {
			return err
		}
		if change = change || taken || len(surplus) > 0; change && (now == nil || l.options.hasty) {
			if err := m.release(ctx, surplus); err != nil {
				return err
			}
		}
		switch {
		case change && now != nil:
			now.cancel(errRebalance)
		case change:
			change = false
			if len(m.parts) > 0 {
				now = l.begin(ctx, handling, t, m)
			}
			l.log.InfoContext(ctx, "shares the group", "partitions", len(m.parts), "of", m.sharing.parts, "members", len(s.fair()))
		}
		if err := m.coordinate(ctx, l.db, s); err != nil {
			return err
		}
		m.last = s
		if change { // poll while the handler finishes, however long it takes, so that other members need not wait for it
			now.pause(m.polls.NextBackOff())
		} else if err := now.during(ctx, m.wait); err != nil {
			return err
		}
	}
}

// sharing returns the group's sharing. It creates the partitions if the group has none yet, or if Options.Reset is set.
func (l *connection) sharing(ctx context.Context, session *core.Session, t *table.Table) (sharing, error) {
	row, err := readGroup(ctx, l.db.Pool(), t.Name, l.options.Group)
	if err != nil {
		return sharing{}, err
	}
	s, shared, err := decodeSharing(t.Name, l.options.Group, row.Delivered)
	if err != nil {
		return s, err
	}
	if shared && !l.options.Reset {
		return s, s.agrees(t, l.options)
	}
	// The group's lock excludes a member that reads for the group alone, and another one that creates the partitions.
	lock, err := l.standBy(ctx, session, groupLock(t.Schema, t.Name, l.options.Group))
	if err != nil {
		return s, err
	}
	defer func() { _ = lock.Release(ctx) }()
	if row, err = readGroup(ctx, l.db.Pool(), t.Name, l.options.Group); err != nil {
		return s, err
	}
	s, shared, err = decodeSharing(t.Name, l.options.Group, row.Delivered)
	if err != nil {
		return s, err
	}
	if shared && !l.options.Reset {
		return s, s.agrees(t, l.options)
	}
	if shared {
		if err := l.deserted(ctx, s, sharePrefix(t.Schema, t.Name, l.options.Group)); err != nil {
			return s, err
		}
	}
	s = asked(t, l.options)
	if _, err := s.expression(t, "id"); err != nil {
		return s, err
	}
	p, err := l.startShared(ctx, t, row)
	if err != nil {
		return s, err
	}
	if err := s.make(ctx, l.db, p, l.options.Member); err != nil {
		return s, err
	}
	l.options.Reset = false // only now: after a passing error, Run comes here again
	return s, nil
}

// deserted returns nil when the group has no active member. It waits up to 5 s for members that are leaving.
func (l *connection) deserted(ctx context.Context, s sharing, prefix string) error {
	waits := &notify.Fibonacci{Min: 10 * time.Millisecond, Max: 200 * time.Millisecond}
	for until := time.Now().Add(5 * time.Second); ; {
		now, err := readSnapshot(ctx, l.db.Pool(), s, prefix)
		if errors.Is(err, position.ErrDamaged) { // members find this too, and end
			return nil
		}
		if err != nil || len(now.fair()) == 0 {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("consumer: group %q has active members: stop them before Reset (--reset): %w", s.group, notify.ErrOptions)
		}
		if err := server.Pause(ctx, waits.NextBackOff()); err != nil {
			return err
		}
	}
}

// startShared returns the offset of the group from the time before it was shared, or where a new group begins.
func (l *connection) startShared(ctx context.Context, t *table.Table, row groupRow) (position.Progress, error) {
	if len(row.Delivered) > 0 && !l.options.Reset {
		done, err := position.Decode(row.Delivered, row.Settled)
		if err != nil {
			return position.Progress{}, fmt.Errorf("consumer: offset of group %q: %w", l.options.Group, err)
		}
		return position.Progress{Settled: row.Settled, Done: done}, nil
	}
	rows, err := l.rows(ctx, t, nil)
	if err != nil {
		return position.Progress{}, err
	}
	defer rows.close()
	return l.start(ctx, rows)
}

// assignment is the time during which a member's partitions stay the same.
type assignment struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error // valid once done is closed
}

// begin starts an assignment with the member's current partitions.
func (l *connection) begin(ctx, handling context.Context, t *table.Table, m *member) *assignment {
	own := m.own()
	ctx, cancel := context.WithCancelCause(ctx)
	n := &assignment{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(n.done)
		n.err = l.readAssigned(ctx, handling, t, m.sharing, own)
	}()
	return n
}

func (l *connection) readAssigned(ctx, handling context.Context, t *table.Table, s sharing, own []int) error {
	shares, begun, err := s.claim(ctx, l.db, own, l.options.Member)
	if err == nil {
		var rows *rows
		if rows, err = l.rows(ctx, t, shares); err == nil {
			defer rows.close()
			err = l.read(ctx, handling, rows, shares, begun)
		}
	}
	switch {
	case err == nil:
		return errDrained
	case errors.Is(context.Cause(ctx), errRebalance) && !errors.Is(err, errUnsaved) && !errors.Is(err, ErrStop) && !permanent(err):
		return errRebalance // err is an effect of the cancellation
	}
	return err
}

// end ends the assignment: the handler finishes its current messages and the offset is stored.
func (n *assignment) end() error {
	n.cancel(errRebalance)
	<-n.done
	return n.err
}

func (n *assignment) over() bool {
	if n == nil {
		return false
	}
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

// pause returns when the assignment has ended or d has passed.
func (n *assignment) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-n.done:
	case <-timer.C:
	}
}

// during calls wait with a context that ends with the assignment, or with ctx if there is no assignment (n is nil). It returns the
// assignment's error if that has ended, otherwise wait's.
func (n *assignment) during(ctx context.Context, wait func(ctx context.Context) error) error {
	until := ctx.Done()
	if n != nil {
		until = n.done // it closes after ctx has ended, when the handler has finished
	}
	waiting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-until:
			cancel()
		case <-waiting.Done():
		}
	}()
	err := wait(waiting)
	cancel()
	<-watched
	select {
	case <-until:
		if n != nil {
			return n.err
		}
		return context.Cause(ctx)
	default:
		return err
	}
}
