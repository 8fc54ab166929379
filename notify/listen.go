package notify

import (
	"context"
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

// Notify wakes who listens to the topic, once, and returns when a keeper has heard
// it: at most as long as a keeper waits between two looks, a second unless it is told
// otherwise. When nobody listens it returns at once. It connects for that: a
// program that notifies more than once keeps a [Gate] and calls Ring, which takes
// no time. The errors are those of [Gate.Join].
func Notify(ctx context.Context, db *DB, topic string) error {
	gate := NewGate(db, topic, GateOptions{})
	defer func() { _ = gate.Close() }()
	return gate.Join(ctx)
}
