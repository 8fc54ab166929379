package notify

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// GateOptions are the settings of a process's part in a gate.
type GateOptions struct {
	// Look makes the waits between two looks of a keeper for what writers did that
	// know nothing of the gate; nil means Fibonacci from 10 ms to 1 s. The bound on the
	// wake for such a row is the longest of them. A keeper looks at the table's own key,
	// and at its flag. With GTIDs a commit makes it look at once, and while it is told of
	// those it waits for 45 s, if that is longer: the bound for a row that is committed
	// without one, after the first of which it waits as without GTIDs.
	Look func() backoff.BackOff
	// Coalesce is the least time between two rings, 1 ms or more; 0 means 1 ms. What
	// is published meanwhile is announced together.
	Coalesce time.Duration
	// KeeperTimeout is how long the server keeps a keeper whose host has vanished
	// without closing its connection, in whole seconds, 3 or more. 0 means 10 s.
	KeeperTimeout time.Duration
	// Logger gets what a user may want to know; nil means slog.Default().
	Logger *slog.Logger

	lossy         *lossy        // ways to lose wakes, for the test that shows them
	describeAgain time.Duration // 0 means describeAgain, which takes a test too long
}

// lossy breaks what the protocol rests on, and delays what it must bear.
type lossy struct {
	phases int    // instead of 256
	old    bool   // a phase is waited for however long ago it was seen
	early  bool   // listeners read rows before the phase is known that they wait for
	delay  func() // called between knowing a phase and waiting for it
}

func (l *lossy) tooEarly() bool { return l != nil && l.early }

func (l *lossy) pause() {
	if l != nil && l.delay != nil {
		l.delay()
	}
}

func (o GateOptions) withDefaults() GateOptions {
	if o.Look == nil {
		o.Look = func() backoff.BackOff { return &Fibonacci{Min: 10 * time.Millisecond, Max: time.Second, Jitter: 0.1} }
	}
	o.Coalesce = max(o.Coalesce, time.Millisecond)
	o.KeeperTimeout = cmp.Or(o.KeeperTimeout, 10*time.Second)
	o.describeAgain = cmp.Or(o.describeAgain, describeAgain)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Gate is a process's part in the gate of a topic, as a listener, as a producer that
// rings, or both; the package comment has the protocol. All the Gates of a DB for
// a topic share their sessions: one that is parked on the server, or keeps the
// gate, however many listen, and one more while a process publishes and another
// keeps the gate. A keeper has two more, whatever the number of topics (one
// for its looks, one for the commits where there are GTIDs), and one for each other
// process that publishes.
//
// It is a [Waiter], whose Head is a number of wake-ups. It reconnects by itself;
// its errors are ErrNoGate, and in Head that of a connection that fails. Safe for
// concurrent use, but for what a Waiter says.
type Gate struct {
	db     *DB
	gate   *gate
	closed chan struct{}
	once   sync.Once

	mu            sync.Mutex
	listens, ring bool
	done          bool
	carries       Piggyback
	keeps         sync.WaitGroup // calls of Keep
}

var _ Carrier = (*Gate)(nil)

// NewGate does not connect: the first Head, Wait, Join or Ring does. Options are
// those of the first Gate of the DB and topic while any is open.
func NewGate(db *DB, topic string, options GateOptions) *Gate {
	return &Gate{db: db, gate: db.joinGate(topic, options.withDefaults()), closed: make(chan struct{})}
}

// Carry implements [Carrier].
func (g *Gate) Carry(p Piggyback) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.carries = p
	g.gate.carry(p)
}

// Head implements [Waiter]. It returns when a ring can't be missed any more.
func (g *Gate) Head(ctx context.Context) (Head, error) {
	g.listen()
	var head Head
	err := g.await(ctx, nil, func(s gateState) (bool, error) {
		head = Head{s.wakes, true}
		if s.armed || s.kept {
			return true, nil
		}
		return s.failure != nil, s.failure
	})
	return head, err
}

// Wait implements [Waiter].
func (g *Gate) Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error) {
	g.listen()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	err := g.await(ctx, timer.C, func(s gateState) (bool, error) {
		if s.wakes != seen.value {
			seen = Head{s.wakes, true}
			return true, nil
		}
		if errors.Is(s.failure, ErrNoGate) {
			return true, s.failure
		}
		return false, nil
	})
	return seen, err
}

// Join takes part as a producer, and returns when it keeps the gate, a keeper has
// heard its bell, or there is none to hear it: what is published before that is
// found by a keeper's look, and rings from then on wake at once. Where more than 32
// other processes publish it returns without a bell, and Heard says so; likewise after
// 1.5 s where the keeper sleeps until a commit (GTIDs) and this account can't set a flag
// to make one: the next commit on the server, that of its first row say, has it heard.
// Its errors are those of Head.
func (g *Gate) Join(ctx context.Context) error {
	g.rings()
	return g.await(ctx, nil, func(s gateState) (bool, error) {
		if s.joined || s.kept {
			return true, nil
		}
		return s.unjoined != nil, s.unjoined
	})
}

// Joined tells whether this Gate takes part as a producer.
func (g *Gate) Joined() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ring
}

// Heard tells whether a Ring wakes for certain from now on, even if Close follows it at
// once: this process keeps the gate, or has a bell that a keeper waits on, or will when
// one comes. Before that, and with more than 32 other producers, a keeper may learn of
// the Ring late or never, if no commit goes before it: where no table has what is
// announced set the topic's [Flag] besides, which its look sees. Also true on a server
// where nobody can keep a gate.
func (g *Gate) Heard() bool {
	state, _ := g.gate.now()
	return state.hears() || errors.Is(state.unjoined, errGalera) || errors.Is(state.unjoined, errPrimaries)
}

// Ring wakes the topic's listeners, soon: it only notes that they are to be woken,
// and many calls may make one ring. Call it after a commit. upTo is the largest id
// that it announces, so that the keeper's look is not surprised by it; 0 if that is
// not known. The first Ring joins, beside the caller. One that announces nothing in any
// table waits until Heard for the keeper's next look.
func (g *Gate) Ring(upTo uint64) {
	g.rings()
	g.gate.ring(upTo)
}

func (g *Gate) listen() { g.take(&g.listens, &g.gate.listening) }
func (g *Gate) rings()  { g.take(&g.ring, &g.gate.ringing) }

// take takes a role, once.
func (g *Gate) take(has *bool, r *role) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !*has && !g.done {
		*has = true
		r.join()
	}
}

// await returns when f says so, timeout fires, ctx ends or the Gate is closed.
func (g *Gate) await(ctx context.Context, timeout <-chan time.Time, f func(gateState) (bool, error)) error {
	for {
		select {
		case <-g.closed:
			return errClosed
		default:
		}
		state, changed := g.gate.now()
		if done, err := f(state); done {
			return err
		}
		select {
		case <-changed:
		case <-timeout:
			return nil
		case <-g.closed:
			return errClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Close implements [Waiter]. The last Close of a topic's Gates returns when their
// sessions are closed; a keeper's listeners then choose another.
func (g *Gate) Close() error {
	g.once.Do(g.close)
	return nil
}

func (g *Gate) close() {
	g.mu.Lock()
	g.done = true
	close(g.closed)
	g.gate.uncarry(g.carries)
	g.mu.Unlock()
	g.keeps.Wait()
	if g.ring {
		g.gate.ringing.leave()
	}
	if g.listens {
		g.gate.listening.leave()
	}
	g.db.leaveGate(g.gate)
}

// gate is what all Gates of a DB and topic share.
type gate struct {
	db      *DB
	topic   string
	names   gateNames
	options GateOptions
	log     *slog.Logger
	users   int // under db.mu

	listening, ringing role
	wanted             chan struct{} // one slot: a ring is to be made

	mu       sync.Mutex
	state    gateState
	changed  chan struct{} // closed and made anew when the state changes
	rung     uint64        // the largest id that a ring announced
	rings    uint64        // that were asked for, by publishes and by bells
	phase    uint64        // where the next ring that this process takes begins
	unfit    time.Time     // until when this account can't keep the gate
	producer uint64        // this process's session with a bell, 0 for none
	yielded  uint64        // the claimant that the gate was handed to
	until    time.Time     // when it may be handed to the same again
	carried  []Piggyback   // the first is
	kept     *keeping      // of this process, nil for none
}

// gateState is what those who wait look at.
type gateState struct {
	wakes    uint64
	armed    bool  // the listener's session waits on a phase, or is about to
	kept     bool  // this process keeps the gate
	joined   bool  // the keeper, if there is one, has heard this process's bell, or there is none to have
	heard    bool  // joined with a bell: whoever keeps the gate until it falls knows of it
	failure  error // why the listener's last session ended, nil once one works
	unjoined error // the same of the producer's
}

func (db *DB) joinGate(topic string, options GateOptions) *gate {
	db.mu.Lock()
	defer db.mu.Unlock()
	g := db.gates[topic]
	if g == nil {
		g = &gate{
			db: db, topic: topic, names: newGateNames(db.Name(), topic), options: options,
			log: options.Logger.With("topic", topic), wanted: make(chan struct{}, 1), changed: make(chan struct{}),
		}
		g.listening.run, g.ringing.run = g.listen, g.produce
		if db.gates == nil {
			db.gates = make(map[string]*gate)
		}
		db.gates[topic] = g
	}
	g.users++
	return g
}

// leaveGate forgets a gate that nobody uses any more; its roles have ended.
func (db *DB) leaveGate(g *gate) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if g.users--; g.users == 0 {
		delete(db.gates, g.topic)
	}
}

func (g *gate) now() (gateState, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state, g.changed
}

func (g *gate) update(f func(*gateState)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(&g.state)
	close(g.changed)
	g.changed = make(chan struct{})
}

// wake ends the waits of this process. It comes after the session knows a phase that
// is held: who reads rows when woken misses no ring after that.
func (g *gate) wake() {
	g.outdate()
	g.update((*gateState).wake)
}

// hears tells whether a ring of this process is heard for certain: what keeps the gate, and a
// bell that a keeper knows of, wake by their end as well.
func (s *gateState) hears() bool { return s.kept || s.heard }

func (s *gateState) wake() {
	s.wakes++
	s.armed, s.failure = true, nil
	if s.kept {
		s.unjoined = nil
	}
}

// ring notes that listeners are to be woken.
func (g *gate) ring(upTo uint64) {
	g.rang(upTo)
	g.want()
}

// rang notes that a ring announces ids up to one.
func (g *gate) rang(upTo uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rung = max(g.rung, upTo)
	g.rings++
}

// want makes whoever rings in this process ring once more.
func (g *gate) want() {
	select {
	case g.wanted <- struct{}{}:
	default: // one that is due anyway
	}
}
