package notify

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const (
	// unheard is for how long a bell is rung again and again while no keeper waits for
	// it: one that is there finds a new bell within its longest wait between two looks, and
	// one that sleeps until the next commit is woken by a knock.
	unheard = 3 * time.Second
	// unknocked is how long Join waits for a keeper that this account can't wake by a knock.
	unknocked = 1500 * time.Millisecond
	// unanswered is how often it is rung after that: the keeper does not answer, and
	// another will come.
	unanswered = time.Second
)

// produce is the role of a process that publishes: it keeps the gate when it can,
// and rings a bell else, which the keeper hears.
func (g *gate) produce(ctx context.Context) {
	defer g.update(func(s *gateState) { s.joined, s.heard, s.unjoined = false, false, nil })
	g.persist(ctx, func(s *gateState, err error) { s.unjoined = err }, func(ctx context.Context) error {
		if state, _ := g.now(); state.kept {
			g.want() // with it the keeper claims the gate
		}
		if !g.awaitKept(ctx, false) { // by the listener's side of this process, which rings
			return nil
		}
		return g.bell(ctx)
	})
}

// bell is a producer's session: it claims the gate if no other producer does, and
// takes a bell for the time until it keeps the gate. It holds the bell on then, which
// nobody waits for any more.
func (g *gate) bell(ctx context.Context) error {
	session, release, err := g.session(ctx, untouched)
	if err != nil {
		return err
	}
	defer release()
	defer g.update(func(s *gateState) { s.joined, s.heard = false, false })
	g.produces(session.ID())
	defer g.produces(0)
	work := context.WithoutCancel(ctx)
	bell := &bell{gate: g, session: session, door: knocker{session: session}}
	// Well inside claimed, and nobody keeps a gate that is handed over until it is tried for.
	keeping := &Fibonacci{Min: 5 * time.Millisecond, Max: 25 * time.Millisecond}
	hearing := &Fibonacci{Min: 10 * time.Millisecond, Max: 200 * time.Millisecond}
	var claim *Lock
	begun, patience := time.Now(), time.Now().Add(unheard)
	for {
		if claim == nil && !bell.claimed && g.fit() {
			claim, err = session.TryLock(work, g.names.claim())
			if err != nil && !errors.Is(err, ErrNotAcquired) {
				return err
			}
		}
		var again <-chan time.Time
		if claim != nil {
			kept, err := g.tryKeep(ctx, session, claim)
			if kept || err != nil {
				return err
			}
			if g.fit() {
				wait := keeping.NextBackOff()
				if time.Now().After(patience) {
					wait = claimed / 2
				}
				again = time.After(wait)
			} else if err := claim.Release(work); err != nil {
				return err
			} else {
				claim = nil
			}
		}
		if err := bell.take(work); err != nil {
			return err
		}
		known := bell.heard || bell.alone
		if known || bell.turner == nil || bell.door.mute && time.Since(begun) > unknocked {
			g.update(func(s *gateState) { s.joined, s.heard, s.unjoined = true, known && bell.turner != nil, nil })
		}
		if !known && bell.turner != nil && again == nil {
			wait := hearing.NextBackOff()
			if time.Now().After(patience) {
				wait = unanswered
			}
			again = time.After(wait)
		}
		wanted, err := g.awaitRing(ctx, session, again)
		if err != nil {
			return err
		}
		if state, _ := g.now(); state.kept {
			return nil
		}
		if wanted {
			keeping.Reset()
			hearing.Reset()
			patience = time.Now().Add(unheard)
		}
		if wanted || !bell.heard {
			if err = bell.ring(work); err != nil {
				return err
			}
		}
		if !bell.heard && !bell.alone && time.Now().Before(patience) {
			bell.door.knock(work)
		}
	}
}

func (g *gate) produces(session uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.producer = session
}

// awaitRing returns true when a ring is wanted, false when again fires or this
// process keeps the gate.
func (g *gate) awaitRing(ctx context.Context, session *Session, again <-chan time.Time) (bool, error) {
	for {
		state, changed := g.now()
		if state.kept {
			return false, nil
		}
		select {
		case <-g.wanted:
			return true, nil
		case <-again:
			return false, nil
		case <-changed:
		case <-session.Lost():
			return false, session.Err()
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// bell is a ring of a producer's own.
type bell struct {
	*gate
	session *Session
	turner  *turner // nil while there is no free slot
	rung    time.Time
	door    knocker
	// What the last ring told: a keeper waited for it, or has lent it his ear (the server keeps
	// that for a while when his host vanishes: whoever keeps the gate next rings when he
	// begins to listen), there is none, a producer claims the gate.
	heard, alone, claimed bool
}

// take takes a slot, if it has none and there is one.
func (b *bell) take(ctx context.Context) error {
	if b.turner != nil {
		return nil
	}
	var query strings.Builder
	query.WriteString("SELECT CASE 1")
	args := make([]any, 0, slots)
	for i := range slots {
		slot := (i + int(b.session.ID())) % slots // not all at the first
		query.WriteString(" WHEN GET_LOCK(?, 0) THEN " + strconv.Itoa(slot))
		args = append(args, b.names.slot(slot))
	}
	query.WriteString(" END, CONNECTION_ID()")
	var slot sql.NullInt64
	if err := askOne(ctx, b.session, query.String(), args, &slot); err != nil {
		return err
	}
	if !slot.Valid {
		return nil
	}
	b.alone = false // a keeper may have come, and looked before there was this bell
	ring := b.ringOf(b.names.bell(int(slot.Int64)))
	b.turner = &turner{ring: ring, session: b.session, firstOnce: ring.phases == phases} // a test's has no room
	return b.turner.take(ctx)
}

// ring wakes the keeper.
func (b *bell) ring(ctx context.Context) error {
	pause(ctx, b.options.Coalesce-time.Since(b.rung))
	b.rung = time.Now()
	const who = "IS_USED_LOCK(?) IS NULL, IS_USED_LOCK(?) IS NOT NULL"
	if b.turner == nil {
		return askOne(ctx, b.session, "SELECT "+who+", CONNECTION_ID()",
			[]any{b.names.keeper(), b.names.claim()}, &b.alone, &b.claimed)
	}
	// The server hands a lock over as it is released, so whoever waited has it now, or has let
	// it go already, on a busy machine; but he keeps his ear.
	phase := b.turner.name(b.session.ID(), 0, b.turner.phase)
	err := b.turner.turn(ctx, ", IS_USED_LOCK(?) IS NOT NULL OR IS_USED_LOCK(?) IS NOT NULL, "+who,
		[]any{phase, b.turner.ear(b.session.ID()), b.names.keeper(), b.names.claim()}, &b.heard, &b.alone, &b.claimed)
	if err != nil {
		return err
	}
	pause(ctx, b.options.Coalesce-time.Since(b.rung))
	return b.turner.ready(ctx)
}

// bellWatch is a keeper's session that waits on another producer's bell.
type bellWatch struct {
	*look
	slot   int
	holder uint64
	heard  bool // the bell's end; before done is closed
	done   chan struct{}
}

func (l *look) newBellWatch(slot int, holder uint64) *bellWatch {
	return &bellWatch{look: l, slot: slot, holder: holder, done: make(chan struct{})}
}

func (b *bellWatch) ended() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// run hears the bell until ctx ends or its producer lets it go. After an error the
// next look begins anew.
func (b *bellWatch) run(ctx context.Context) {
	defer func() {
		close(b.done)
		select {
		case b.deaf <- struct{}{}:
		default:
		}
	}()
	defer func() {
		if ctx.Err() == nil && !b.heard {
			b.ring(0)
		}
	}()
	session, release, err := b.gate.session(ctx, untouched)
	if err != nil {
		return
	}
	defer release()
	defer b.db.endWith(ctx, session)()
	work := context.WithoutCancel(ctx)
	w := &watcher{ring: b.ringOf(b.names.bell(b.slot)), session: session, lossy: b.options.lossy}
	for lent := false; ctx.Err() == nil; lent = true {
		armed, err := w.find(work, b.holder)
		if err != nil || !armed {
			return
		}
		if !lent {
			if err := w.lend(work); err != nil {
				return
			}
		}
		b.heard = false
		// By what was missed, or another keeper's watch has heard. One at its first phase
		// has not rung yet.
		woken := lent || w.phase%uint64(w.phases) != 0
		err = w.stay(work, func() (err error) {
			for armed && err == nil {
				if woken {
					b.ring(0)
					runtime.Gosched() // the ring first, then the wait for the next
				}
				woken, armed, err = w.park(work, parked)
			}
			return err
		})
		if err != nil {
			return
		}
		b.heard = true
		b.ring(0)
	}
}
