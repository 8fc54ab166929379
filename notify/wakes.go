package notify

import (
	"context"
	"time"
)

// Wake is what ended a wait.
type Wake string

const (
	// WakeRing is the table's wake trigger, a publisher's ring, or that of a keeper in another process, whatever it
	// has seen.
	WakeRing Wake = "ring"
	// WakeLook is what this process saw as the gate's keeper, and nobody had rung for.
	WakeLook Wake = "look"
	// WakeCommit is a commit on a server with GTIDs.
	WakeCommit Wake = "commit"
	// WakePoll is a head, or a flag, that had moved when it was looked at.
	WakePoll Wake = "poll"
	// WakeTurn is the other side of a handshake.
	WakeTurn Wake = "turn"
	// WakeMove is an Auto's move to another way.
	WakeMove Wake = "move"
	// WakeTimeout is none of these: the bound of the wait has passed.
	WakeTimeout Wake = "timeout"
)

// Observe is the waiter, which tells of each Wait that returns without an error what
// ended it, before it returns. It carries nothing: call Carry on the waiter itself.
func Observe(w Waiter, tell func(Wake)) Waiter { return &observer{Waiter: w, tell: tell} }

type observer struct {
	Waiter
	tell  func(Wake)
	rings uint64 // that the gate had been asked for at its last wake
}

func (o *observer) Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error) {
	before := underlying(o.Waiter)
	head, err := o.Waiter.Wait(ctx, seen, bound)
	if err != nil {
		return head, err
	}
	after := underlying(o.Waiter)
	switch {
	case after != before:
		o.tell(WakeMove)
	case head == seen:
		o.tell(WakeTimeout)
	default:
		o.tell(o.kind(after))
	}
	return head, nil
}

// underlying is the waiter that an Auto has now.
func underlying(w Waiter) Waiter {
	auto, ok := w.(*Auto)
	if !ok {
		return w
	}
	auto.mu.Lock()
	defer auto.mu.Unlock()
	return auto.waiter
}

func (o *observer) kind(w Waiter) Wake {
	switch w := w.(type) {
	case *GTID:
		return WakeCommit
	case *Poll:
		return WakePoll
	case *Handshake:
		return WakeTurn
	case *Gate:
		return o.gate(w.gate)
	}
	return WakeRing
}

// gate tells a ring from a look.
func (o *observer) gate(g *gate) Wake {
	g.mu.Lock()
	defer g.mu.Unlock()
	rung := g.rings != o.rings
	o.rings = g.rings
	if g.state.kept && !rung {
		return WakeLook
	}
	return WakeRing
}
