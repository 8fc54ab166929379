package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// keeping is a time in which a session of this process keeps the gate.
type keeping struct {
	*gate
	session *Session
	lock    *Lock // the keeper's
	turner  *turner
	claim   *Lock // nil while no producer of this process has it

	inserting
}

var (
	// errCantLook means that this account must leave the keeping to others: it would
	// not see what writers insert that know nothing of the gate.
	errCantLook = errors.New("the account may not read the topic's table")
	errHandOver = errors.New("a producer claims the gate")
)

// fit tells whether this account can keep gates, as far as is known.
func (g *gate) fit() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Now().After(g.unfit)
}

// tryKeep keeps the gate if nobody does, and tells whether it did. claim is the
// claim's lock, if the session has it.
func (g *gate) tryKeep(ctx context.Context, session *Session, claim *Lock) (kept bool, err error) {
	lock, err := session.TryLock(context.WithoutCancel(ctx), g.names.keeper())
	if errors.Is(err, ErrNotAcquired) {
		return false, nil
	}
	if err == nil {
		err = g.keep(ctx, session, lock, claim, func() {
			g.log.DebugContext(ctx, "keeps the gate", "session", session.ID())
		})
	}
	if errors.Is(err, errCantLook) {
		again, level := time.Minute, slog.LevelWarn
		if claim != nil { // a bell does as well, and each try takes the gate from another
			again, level = time.Hour, slog.LevelDebug
		}
		g.log.Log(ctx, level, "nobody keeps the gate, and this account can't", "error", err)
		g.mu.Lock()
		g.unfit = time.Now().Add(again)
		g.mu.Unlock()
		return false, nil
	}
	return err == nil, err
}

// keep keeps the gate over a session that has just taken the keeper's lock, and tells
// when it has begun, until ctx ends, the session is lost, or a producer elsewhere
// claims the gate: then it returns nil.
func (g *gate) keep(ctx context.Context, session *Session, lock, claim *Lock, begun func()) error {
	k := &keeping{
		gate: g, session: session, lock: lock, claim: claim, turner: g.newTurner(g.names.gate(), session),
		inserting: inserting{inserted: make(chan struct{}, 1)},
	}
	work := context.WithoutCancel(ctx)
	if err := session.retime(work, g.options.KeeperTimeout); err != nil {
		return err
	}
	if err := session.zone(work, session.Capabilities().TimeZone); err != nil { // of what is inserted
		return err
	}
	if err := k.turner.take(work); err != nil {
		return err
	}
	defer func() {
		g.update(func(s *gateState) { s.kept = false })
		g.keeps(nil)
		k.turning.Lock()
		k.over = true
		k.turning.Unlock()
		// The lock first: who is woken by the phase is to find that nobody keeps the gate.
		_ = lock.Release(work)
		if k.claim != nil && claim == nil {
			_ = k.claim.Release(work)
		}
		if err := k.turner.drop(work); err != nil {
			session.fail(err) // nobody may wait for what it did not let go
		}
		if err := session.zone(work, utc); err != nil {
			session.fail(err)
		}
		g.left(k.turner)
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	look := newLook(k, cancel)
	err := look.first(ctx) // what came before it is told by the first ring
	if err == nil {
		begun()
		g.keeps(k)
		look.running.Go(func() { look.run(ctx) })
		err = k.ringing(ctx)
	}
	cancel(err)
	look.close()
	if cause := context.Cause(ctx); err == nil && errors.Is(cause, errHandOver) {
		return nil
	}
	if ctx.Err() != nil && err == nil {
		return context.Cause(ctx)
	}
	return err
}

// ringing turns the ring whenever somebody wants it.
func (k *keeping) ringing(ctx context.Context) error {
	work := context.WithoutCancel(ctx)
	for {
		if err := k.claimIt(work); err != nil {
			return err
		}
		k.outdate()
		k.update(func(s *gateState) { // here, in no time
			s.kept = true
			s.wake()
		})
		if err := k.turn(work); err != nil {
			return err
		}
		for wanted := false; !wanted; {
			k.turning.Lock()
			turned := k.turned
			k.turning.Unlock()
			pause(ctx, k.options.Coalesce-time.Since(turned)) // for who is woken, too
			if err := k.ready(work); err != nil {
				return err
			}
			select {
			case <-k.wanted:
				wanted = true
			case <-k.inserted:
			case <-k.lock.Lost():
				return k.lock.Err()
			case <-ctx.Done():
				return nil
			}
		}
	}
}

func (k *keeping) turn(ctx context.Context) error {
	k.turning.Lock()
	defer k.turning.Unlock()
	k.turned = time.Now()
	return k.turner.turn(ctx, "", nil)
}

func (k *keeping) ready(ctx context.Context) error {
	k.turning.Lock()
	defer k.turning.Unlock()
	return k.turner.ready(ctx)
}

// claimIt claims the gate for the producers of this process, when it has any. If
// another process's have, the look hands the gate over.
func (k *keeping) claimIt(ctx context.Context) error {
	if k.claim != nil || !k.gate.ringing.wanted() {
		return nil
	}
	claim, err := k.session.TryLock(ctx, k.names.claim())
	if errors.Is(err, ErrNotAcquired) {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.claim = claim
	return err
}

// claims tells whether the session has the claim besides.
func (k *keeping) claims() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.claim != nil
}

// yields tells whether the gate is to be handed over to the session that claims it:
// not to one of this process, which makes room. One that did not take it is not
// asked again for a while.
func (k *keeping) yields(claim uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if claim == 0 || claim == k.session.ID() || claim == k.producer || k.claim != nil {
		return false
	}
	if k.yielded == claim && time.Now().Before(k.until) {
		return false
	}
	k.yielded, k.until = claim, time.Now().Add(10*time.Second)
	return true
}

// newTurner turns on from where this process stopped: a session that takes a ring
// again soon must not hold phases again that somebody still believes in.
func (g *gate) newTurner(r ring, session *Session) *turner {
	g.mu.Lock()
	defer g.mu.Unlock()
	return &turner{ring: g.ringOf(r), session: session, phase: g.phase}
}

// left notes where a turner stopped.
func (g *gate) left(t *turner) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.phase = t.next + 1
}

// ringOf is the ring, but for a test that breaks it.
func (g *gate) ringOf(r ring) ring {
	if g.options.lossy != nil && g.options.lossy.phases > 0 {
		r.phases = g.options.lossy.phases
	}
	return r
}

func keepError(err error) error { return fmt.Errorf("notify: keep the gate: %w", err) }
