package waiting

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	readCommitted   = "READ COMMITTED"
	readUncommitted = "READ UNCOMMITTED"

	// together is the number of heads that one statement reads.
	together = 250
	// leastPoll and mostPoll bound the waits between two polls of a topic that has no trigger.
	leastPoll = 10 * time.Millisecond
	mostPoll  = time.Second
	// pingEach is how often the poller pings, because a proxy may close a connection that is silent for longer.
	pingEach = time.Minute
)

// poller reads the heads of all topics of the process: after hints, and regularly for topics without a trigger.
type poller struct {
	process *process

	mu     sync.Mutex
	topics []*topic // replaced, never changed in place

	asleep atomic.Bool // the poller has nothing to do until a hint comes

	// The goroutine of run owns the fields below.
	dirty     *session // sees uncommitted rows
	pinged    time.Time
	rounds    [allGates]round
	polls     map[*topic]*poll  // the topics that are polled regularly
	triggers  map[string]Events // by table: the changes that have a working wake trigger
	readAt    time.Time         // when the triggers were read
	stale     bool              // the triggers must be read again
	waits     *topic            // the topic for which a commit wait runs on the dirty session
	committed chan commit
	back      chan *topic // topics that need no goroutine any more
	asides    sync.WaitGroup
}

// round is the state of a gate's polling after a hint.
type round struct {
	hot   bool // the poller may not sleep
	fresh bool // no round was made since the last hint
	step  int  // the argument of growth
	due   time.Time
	news  bool // a row was found since the last hint
	asked bool // the triggers were read since the last hint
}

// poll is the state of a topic that is polled regularly.
type poll struct {
	wait, before time.Duration // the last two Fibonacci numbers
	due          time.Time
}

// commit is the result of a commit wait.
type commit struct {
	id      sql.Null[uint64]
	carrier Carrier
	keep    func() // hands the row to the carrier; may be nil
	err     error
}

func newPoller(p *process) *poller { return &poller{process: p} }

func (p *poller) join(t Topic, g *gate) *topic {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, other := range p.topics {
		if reflect.DeepEqual(other.Topic, t) {
			other.users++
			return other
		}
	}
	joined := &topic{Topic: t, gate: g, users: 1}
	joined.become(state{})
	p.topics = append(slices.Clip(p.topics), joined)
	return joined
}

func (p *poller) leave(t *topic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.users--; t.users == 0 {
		p.topics = slices.DeleteFunc(slices.Clone(p.topics), func(other *topic) bool { return other == t })
	}
}

func (p *poller) all() []*topic {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.topics
}

// run polls until ctx ends, and reconnects when a connection is lost.
func (p *poller) run(ctx context.Context) {
	keep(ctx, nil, func() error {
		err := p.work(ctx)
		p.unknown(ctx, p.all(), err)
		p.process.log.DebugContext(ctx, "the poller reconnects", "error", err)
		return err
	})
}

// work polls while its connection lives.
func (p *poller) work(ctx context.Context) (err error) {
	p.dirty, err = connect(ctx, p.process.config, readUncommitted,
		"lock_wait_timeout", "1", "wait_timeout", "180",
		"innodb_lock_wait_timeout", "1",
		"innodb_snapshot_isolation", "OFF", // otherwise a commit wait would end with error 1020
	)
	if err != nil {
		return err
	}
	defer p.dirty.close()
	defer func(ctx context.Context) {
		if ctx.Err() == nil && p.dirty.tookTooLong() { // the query would go on while the next session asks again
			_ = p.process.helper.kill(ctx, p.dirty)
		}
	}(ctx)
	defer p.process.endWith(ctx, p.dirty, opened)()
	if err := p.takePin(); err != nil {
		return err
	}
	p.pinged = time.Now()
	p.polls, p.triggers, p.readAt, p.stale = make(map[*topic]*poll), nil, time.Time{}, true
	p.waits, p.committed = nil, make(chan commit, 1)
	p.back = make(chan *topic, 1)
	for _, t := range p.all() {
		t.aside, t.failing = false, false
	}
	ctx, cancel := context.WithCancel(ctx)
	defer p.asides.Wait()
	defer cancel()
	defer func() {
		if p.waits != nil {
			p.dirty.cut()
			<-p.committed
		}
	}()
	for g := range p.rounds { // a connection counts as a hint
		p.rounds[g] = round{hot: true, fresh: true}
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-p.process.news:
			for g := range p.rounds {
				if !p.process.hints[g].Swap(false) {
					continue
				}
				p.rounds[g] = round{hot: true, fresh: true}
				if p.waits != nil && p.waits.gate.number == g {
					// The last round has already found the row, and the wait for its commit ends first.
					p.rounds[g].due = time.Now().Add(growth(0))
				}
			}
		case c := <-p.committed:
			if err := p.settle(c); err != nil {
				return err
			}
		case t := <-p.back:
			t.aside = false
			p.rounds[t.gate.number] = round{hot: true, fresh: true}
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p.asleep.Store(false)
		if err := p.step(ctx); err != nil {
			return err
		}
		p.tell()
		next := p.next()
		p.asleep.Store(next > mostPoll)
		timer.Reset(next)
	}
}

// takePin takes a lock of a new name, for which the leaders wait from now on. The old one may be held until the server ends a
// connection that has vanished.
func (p *poller) takePin() error {
	pin := Prefix(p.process.config.DBName) + ":pin:" + strings.ToLower(rand.Text()[:10])
	var got sql.NullInt64
	if err := p.dirty.ask(answer, "SELECT GET_LOCK(?, 0)", []any{pin}, &got); err != nil {
		return err
	}
	if got.Int64 != 1 {
		return errForeignLock
	}
	if p.process.pin.Swap(&pin) == nil {
		close(p.process.pinned)
	}
	return nil
}

// tell updates for every topic whether every commit brings a hint.
func (p *poller) tell() {
	lacks := false
	for _, t := range p.all() {
		_, known := p.triggers[t.Table]
		switch place, why := t.gate.place.Load(), t.gate.why.Load(); {
		case !known:
		case place == nil && why == nil && p.dirty.caps.WritersElsewhere(): // the gate will say so
			t.tell(false, errElsewhere)
		case place == nil && why != nil && (errors.Is(*why, errElsewhere) || errors.Is(*why, errShared)):
			t.tell(false, *why)
		case !p.hinted(t):
			t.tell(false, ErrNoTrigger)
		case place != nil:
			t.tell(true, nil)
		case why != nil:
			t.tell(false, *why)
		}
		lacks = lacks || t.state.Load().why != nil
	}
	p.process.lacks.Store(lacks)
	if lacks {
		poke(p.process.lacking)
	}
}

// hinted reports whether the topic's table has a trigger for every change that moves the head.
func (p *poller) hinted(t *topic) bool { return p.triggers[t.Table]&t.Events == t.Events }

// next returns the time until something is due.
func (p *poller) next() time.Duration {
	next := time.Now().Add(time.Hour)
	for _, r := range p.rounds {
		if r.hot && r.due.Before(next) {
			next = r.due
		}
	}
	if again := p.readAt.Add(time.Second); p.stale && p.waits == nil && again.Before(next) {
		next = again
	}
	if ping := p.pinged.Add(pingEach); p.waits == nil && ping.Before(next) {
		next = ping
	}
	for _, poll := range p.polls {
		if poll.due.Before(next) {
			next = poll.due
		}
	}
	return time.Until(next)
}

// step does what is due.
func (p *poller) step(ctx context.Context) error {
	now := time.Now()
	if p.waits == nil && now.Sub(p.pinged) >= pingEach {
		if err := p.dirty.ping(); err != nil {
			return err
		}
		p.pinged = now
	}
	if err := p.refresh(ctx, now); err != nil {
		return err
	}
	var due [allGates]bool
	some := false
	for g, r := range p.rounds {
		due[g] = r.hot && !r.due.After(now)
		some = some || due[g]
	}
	if some {
		if err := p.round(ctx, due); err != nil {
			return err
		}
	}
	p.regular(ctx, now)
	return nil
}
