package notify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"
)

const (
	// parked is a listener's longest wait in the server: one statement.
	parked = 90 * time.Second
	// untouched is the IdleTimeout of sessions that hold nothing which anybody waits
	// for: idle, they send no statement.
	untouched = 8 * time.Hour
	// claimed is how long a producer that has claimed the gate may take to keep it,
	// before a listener does.
	claimed = 500 * time.Millisecond
)

// listen is the role of a process that listens: its session is parked on the
// keeper's phase, or keeps the gate itself when nobody else does.
func (g *gate) listen(ctx context.Context) {
	defer g.update(func(s *gateState) { s.armed, s.failure = false, nil })
	g.persist(ctx, func(s *gateState, err error) { s.failure = err }, func(ctx context.Context) error {
		if !g.awaitKept(ctx, false) { // by the producer's side of this process
			return nil
		}
		return g.park(ctx)
	})
}

// awaitKept returns when this process keeps the gate, or when it does not; false
// when ctx ends before.
func (g *gate) awaitKept(ctx context.Context, kept bool) bool {
	for {
		state, changed := g.now()
		if state.kept == kept {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// park listens over one session, for as long as that lives or until this process
// keeps the gate by other means.
func (g *gate) park(ctx context.Context) error {
	session, release, err := g.session(ctx, g.options.KeeperTimeout)
	if err != nil {
		return err
	}
	defer release()
	defer g.update(func(s *gateState) { s.armed = false })
	ended := ctx
	ctx = context.WithoutCancel(ctx) // release ends a statement under way
	w := &watcher{ring: g.ringOf(g.names.gate()), session: session, lossy: g.options.lossy}
	w.lane = rand.IntN(w.lanes)
	waits := Exponential(time.Millisecond, time.Second)
	for alone := time.Now(); ended.Err() == nil; {
		if state, _ := g.now(); state.kept {
			return nil
		}
		keeper, claim, err := g.who(ctx, session)
		if err != nil {
			return err
		}
		if keeper != 0 {
			alone = time.Now()
			if g.options.lossy.tooEarly() {
				g.wake()
				g.options.lossy.pause()
			}
			found, err := w.find(ctx, keeper)
			if err != nil {
				return err
			}
			if found {
				waits.Reset()
				if err := g.hear(ended, w); err != nil {
					return err
				}
				alone = time.Now()
				continue
			}
		} else if g.fit() && (claim == 0 || time.Since(alone) > claimed) {
			kept, err := g.tryKeep(ended, session, nil)
			if err != nil {
				return err
			}
			if kept {
				waits.Reset()
				alone = time.Now() // or a claimant that it yielded to would come too late
				continue
			}
		}
		// A keeper that is coming or going. Not all at once, and not at one speed.
		pause(ended, time.Duration((0.5+rand.Float64())*float64(waits.NextBackOff())))
	}
	return context.Cause(ended)
}

// hear waits on the phases of a keeper, and wakes this process when they go by, for
// as long as the watcher knows one.
func (g *gate) hear(ctx context.Context, w *watcher) error {
	defer g.db.endWith(ctx, w.session)()
	work := context.WithoutCancel(ctx)
	if !g.options.lossy.tooEarly() {
		g.wake()
	}
	return w.stay(work, func() error {
		for {
			w.carry.Piggyback = g.piggyback()
			woken, armed, err := w.park(work, parked)
			if err != nil {
				return err
			}
			if !armed || g.options.lossy.tooEarly() {
				return nil // what was missed, the wake after the next find tells
			}
			if woken {
				if !w.carried {
					g.outdate()
				}
				g.update((*gateState).wake)
				runtime.Gosched() // who was woken reads first, then this session waits again
			}
		}
	})
}

// session is a pinned session for a gate; the caller calls release when done with
// it. A server that does not answer can't hold the caller up for long after ctx ended.
func (g *gate) session(ctx context.Context, idle time.Duration) (session *Session, release func(), err error) {
	session, err = g.db.Session(ctx, SessionOptions{IdleTimeout: idle})
	if err != nil {
		return nil, nil, err
	}
	if err := locksReach(session.Capabilities()); err != nil {
		_ = session.Close()
		return nil, nil, err
	}
	released := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		late := time.NewTimer(time.Second)
		defer late.Stop()
		select {
		case <-released:
		case <-late.C:
			_ = session.Close()
		}
	})
	return session, func() {
		stop()
		close(released)
		_ = session.Close()
	}, nil
}

// who asks for the keeper's session and the claimant's, 0 for none.
func (g *gate) who(ctx context.Context, session *Session) (keeper, claim uint64, err error) {
	const query = "SELECT COALESCE(IS_USED_LOCK(?), 0), COALESCE(IS_USED_LOCK(?), 0), CONNECTION_ID()"
	err = askOne(ctx, session, query, []any{g.names.keeper(), g.names.claim()}, &keeper, &claim)
	if err != nil {
		return 0, 0, fmt.Errorf("notify: look for the keeper: %w", err)
	}
	return keeper, claim, nil
}
