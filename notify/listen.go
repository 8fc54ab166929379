package notify

import (
	"context"
	"fmt"
	"time"
)

// Listen is the plain LISTEN: the channel gets a value when somebody notified the
// topic, or inserted into the table of that name, since the last one was taken.
// What comes while one waits to be taken adds nothing to it. A first value comes at
// once, for what happened before. No table is needed.
//
// It returns when nothing that follows can be missed. The channel is closed when ctx
// ends and nothing of it is left, or when the gate has become impossible. The
// errors are ErrNoGate, and that of a connection that fails; a connection that is lost
// later is made anew, with a value for what may have been missed.
func Listen(ctx context.Context, db *DB, topic string) (<-chan struct{}, error) {
	gate := NewGate(db, topic, GateOptions{})
	head, err := gate.Head(ctx)
	if err != nil {
		_ = gate.Close()
		return nil, err
	}
	wakes := make(chan struct{}, 1)
	wakes <- struct{}{}
	go func() {
		defer close(wakes)
		defer func() { _ = gate.Close() }()
		for {
			woken, err := gate.Wait(ctx, head, longest)
			if err != nil {
				return
			}
			head = woken
			select {
			case wakes <- struct{}{}:
			default: // one waits already
			}
		}
	}()
	return wakes, nil
}

// Notify wakes who listens to the topic, once, and returns when the keeper has heard
// it: at most as long as a keeper waits between two looks, a second unless it is told
// otherwise. One that sleeps until a commit (GTIDs, and there is a table of that name) it
// wakes by setting a flag; an account that may not do so waits for the next commit on the
// server, 45 s at most. When nobody listens it returns at once. It connects for that, unless this
// DB takes part in the topic's gate already: a program that notifies more than once
// keeps a [Gate] and calls Ring, which takes no time. The errors are ErrNoGate, that of
// a connection that fails, and the cause of ctx.
func Notify(ctx context.Context, db *DB, topic string) error {
	gate := NewGate(db, topic, GateOptions{})
	defer func() { _ = gate.Close() }()
	if state, _ := gate.gate.now(); state.hears() {
		gate.gate.ring(0)
		return nil
	}
	return gate.gate.announce(ctx)
}

// announce is a bell that rings once, when the keeper waits for it. It claims
// nothing: the keeper stays.
func (g *gate) announce(ctx context.Context) error {
	session, release, err := g.session(ctx, untouched)
	if err != nil {
		return err
	}
	defer release()
	keeper, _, err := g.who(ctx, session)
	if err != nil || keeper == 0 { // whoever comes rings when it begins
		return err
	}
	bell := &bell{gate: g, session: session, door: knocker{session: session}}
	waits := &Fibonacci{Min: 5 * time.Millisecond, Max: 100 * time.Millisecond}
	for {
		if err := bell.take(ctx); err != nil {
			return err
		}
		if done, err := bell.ringOnce(ctx, keeper); done || err != nil {
			return err
		}
		bell.door.knock(ctx)
		if pause(ctx, waits.NextBackOff()); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// ringOnce lets the bell go if somebody waits for it, and tells whether there is no
// more to do: another keeper's first ring does the same.
func (b *bell) ringOnce(ctx context.Context, keeper uint64) (done bool, err error) {
	ring := b.names.bell(0) // while there is no free slot
	if b.turner != nil {
		ring = b.turner.ring
	}
	const query = "SELECT NOT (COALESCE(IS_USED_LOCK(?), 0) = ?), IS_USED_LOCK(?) IS NOT NULL, CONNECTION_ID()"
	err = askOne(ctx, b.session, query, []any{b.names.keeper(), keeper, ring.ear(b.session.ID())}, &done, &b.heard)
	if err != nil {
		return false, fmt.Errorf("notify: look for the keeper: %w", err)
	}
	if b.heard {
		return true, b.turner.drop(ctx)
	}
	return done, nil
}
