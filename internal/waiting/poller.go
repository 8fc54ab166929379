package waiting

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
)

const (
	readCommitted   = "READ COMMITTED"
	readUncommitted = "READ UNCOMMITTED"

	// together is the number of heads that one statement reads.
	together = 250
	// leastPoll and mostPoll bound the waits between two polls of a topic that has no trigger.
	leastPoll = 10 * time.Millisecond
	mostPoll  = time.Second
)

// growth are the waits between the rounds of a gate after a hint.
var growth = [...]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond, 8 * time.Millisecond,
	13 * time.Millisecond, 20 * time.Millisecond,
}

// afterNothing is the step of growth that follows a hint without a row: its wait is longer than the leader's rest, so
// that the next round is the last.
const afterNothing = 2

// poller reads the heads of all topics of the process: after hints, and regularly where a topic has no trigger.
type poller struct {
	process *process

	mu     sync.Mutex
	topics []*topic // never changed in place

	asleep atomic.Bool // nothing is to be done until a hint comes

	// What follows belongs to run.
	read, dirty *session
	rounds      [allGates]round
	polls       map[*topic]*poll // of topics without a trigger
	triggers    map[string]bool  // tables with a trigger that wakes
	looked      time.Time        // when the triggers were read
	waits       *topic           // whose commit wait runs on the dirty session
	committed   chan commit
	aside       map[*topic]bool // a goroutine reads their heads, because they hold others up
	back        chan *topic
	asides      sync.WaitGroup
}

// round is the state of a gate's polling after a hint.
type round struct {
	hot   bool // the process may not sleep
	fresh bool // no round yet since the last hint
	step  int  // into growth
	due   time.Time
	news  bool // a row was found since the last hint
}

// poll is the state of a topic that is polled regularly.
type poll struct {
	wait, before time.Duration // as Fibonacci's numbers
	due          time.Time
}

// commit is the result of a commit wait.
type commit struct {
	id   sql.Null[uint64]
	keep func() // gives the row to the topic's carrier; may be nil
	err  error
}

func newPoller(p *process) *poller { return &poller{process: p} }

func (p *poller) join(t Topic, g *gate) *topic {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, other := range p.topics {
		if other.same(t) {
			other.users++
			return other
		}
	}
	joined := &topic{Topic: t, gate: g, users: 1, changed: make(chan struct{})}
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

// run polls until ctx ends, and connects again when a connection is lost.
func (p *poller) run(ctx context.Context) {
	waits := exponential()
	for ctx.Err() == nil {
		begun := time.Now()
		err := p.work(ctx)
		if ctx.Err() != nil {
			return
		}
		p.process.log.DebugContext(ctx, "the poller connects again", "error", err)
		for _, t := range p.all() {
			if _, known, _, _ := t.now(); !known {
				t.set(Head{}, err)
			}
		}
		if time.Since(begun) > time.Second {
			waits.Reset()
		}
		pause(ctx, waits.NextBackOff())
	}
}

// work polls while its connections live.
func (p *poller) work(ctx context.Context) (err error) {
	if p.read, err = connect(ctx, p.process.config, readCommitted, "lock_wait_timeout", "1", "wait_timeout", "180"); err != nil {
		return err
	}
	defer p.read.close()
	defer p.process.endWith(ctx, p.read)()
	p.dirty, err = connect(ctx, p.process.config, readUncommitted,
		"lock_wait_timeout", "1", "wait_timeout", "180",
		"innodb_lock_wait_timeout", "1",
		"innodb_snapshot_isolation", "OFF", // or a commit wait would end with error 1020
	)
	if err != nil {
		return err
	}
	defer p.dirty.close()
	defer p.process.endWith(ctx, p.dirty)()
	p.polls, p.triggers, p.looked = make(map[*topic]*poll), nil, time.Time{}
	p.waits, p.committed = nil, make(chan commit, 1)
	p.aside, p.back = make(map[*topic]bool), make(chan *topic, 1)
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
					// The last round has found the row already: the wait for its commit is the soonest to end.
					p.rounds[g].due = time.Now().Add(growth[0])
				}
			}
		case c := <-p.committed:
			if err := p.settle(c); err != nil {
				return err
			}
		case t := <-p.back:
			delete(p.aside, t)
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

// tell tells the listeners whether every commit brings a hint, when that may have changed.
func (p *poller) tell() {
	for _, t := range p.all() {
		woken, known := p.triggers[t.Table]
		switch place, why := t.gate.place.Load(), t.gate.why.Load(); {
		case !known:
		case !woken:
			t.tell(false, ErrNoTrigger)
		case place != nil:
			t.tell(true, nil)
		case why != nil:
			t.tell(false, *why)
		}
	}
}

// next is the time until something is due.
func (p *poller) next() time.Duration {
	next := time.Now().Add(time.Hour)
	for _, r := range p.rounds {
		if r.hot && r.due.Before(next) {
			next = r.due
		}
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
	if err := p.refresh(now); err != nil {
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
	return p.regular(ctx, now)
}

// round is one round of the gates that are due.
func (p *poller) round(ctx context.Context, due [allGates]bool) error {
	var topics []*topic
	var used [allGates]bool
	for _, t := range p.all() {
		if due[t.gate.number] && !p.aside[t] {
			topics = append(topics, t)
			used[t.gate.number] = true
		}
	}
	var can [allGates]bool // gates whose leader can be woken
	switch {
	case p.waits != nil: // no dirty read until the commit wait has ended
		news, err := p.heads(ctx, p.read, topics)
		if err != nil {
			return err
		}
		p.note(news)
	case len(topics) == 1 && p.rounds[topics[0].gate.number].fresh && topics[0].commitWait():
		p.wait(topics[0])
	default:
		var err error
		if can, err = p.look(ctx, due, topics); err != nil {
			return err
		}
	}
	now := time.Now()
	for g := range due {
		if !due[g] {
			continue
		}
		r := &p.rounds[g]
		if r.fresh = false; can[g] || !used[g] {
			r.hot = false
			continue
		}
		r.due = now.Add(growth[min(r.step, len(growth)-1)])
		r.step++
	}
	return nil
}

// note begins the waits of the gates again whose topics have news.
func (p *poller) note(news []*topic) {
	for _, t := range news {
		r := &p.rounds[t.gate.number]
		r.step, r.news = 0, true
	}
}

// look makes the two checks of the protocol, and reads the heads that have moved or are about to. It returns the gates
// that pass: their leader can be woken, and no row of their topics, committed or not, has come.
//
// The first statement makes both checks, in no certain order, because most rounds end with it. Only the second one, which
// looks for rows again where the leader can be woken, decides.
func (p *poller) look(ctx context.Context, due [allGates]bool, topics []*topic) (can [allGates]bool, err error) {
	locks := p.locks(due)
	heads, failed, err := p.ask(ctx, p.dirty, append(locks, topics...))
	if err != nil {
		return can, err
	}
	moving := p.moving(topics, heads[len(locks):], failed)
	for i, lock := range locks {
		can[lock.gate.number] = heads[i].Valid && heads[i].V == 1
	}
	quiet := slices.DeleteFunc(slices.Clone(topics), func(t *topic) bool { return !can[t.gate.number] || slices.Contains(moving, t) })
	if len(quiet) > 0 && len(moving) == 0 {
		if heads, failed, err = p.ask(ctx, p.dirty, quiet); err != nil {
			return can, err
		}
		moving = p.moving(quiet, heads, failed)
	}
	if len(moving) > 0 {
		can = [allGates]bool{}
	}
	if len(moving) == 1 && moving[0].commitWait() && failed[moving[0]] == nil {
		p.wait(moving[0])
		return can, nil
	}
	news, err := p.heads(ctx, p.read, moving)
	if err != nil {
		return can, err
	}
	p.note(news)
	for _, t := range moving {
		if t.commitWait() && !slices.Contains(news, t) {
			p.wait(t)
			break
		}
	}
	return can, nil
}

// moving returns the topics of which a dirty read shows another head than the one that was seen.
func (p *poller) moving(topics []*topic, heads []Head, failed map[*topic]error) (moving []*topic) {
	for i, t := range topics {
		if _, known, _, _ := t.now(); failed[t] != nil || !known || heads[i] != t.seen() {
			moving = append(moving, t)
		}
	}
	return moving
}

// locks are queries that are 1 for the gates whose leader can be woken: it holds the wake lock, and if it is this
// process's, its last statement has begun.
func (p *poller) locks(due [allGates]bool) (locks []*topic) {
	for _, g := range p.gates() {
		place := g.place.Load()
		if !due[g.number] || place == nil || p.rounds[g.number].fresh {
			continue
		}
		query, args := "SELECT IS_USED_LOCK(?) <=> ?", []any{g.names.wake(), place.leader}
		if place.phase != "" {
			query += " AND IS_USED_LOCK(?) <=> ?"
			args = append(args, place.phase, place.leader)
		}
		locks = append(locks, &topic{Topic: Topic{Head: query, Args: args}, gate: g})
	}
	return locks
}

// gates are those of the topics.
func (p *poller) gates() (gates []*gate) {
	for _, t := range p.all() {
		if !slices.Contains(gates, t.gate) {
			gates = append(gates, t.gate)
		}
	}
	return gates
}

// wait begins a commit wait for the topic's next row.
func (p *poller) wait(t *topic) {
	p.waits = t
	head, carrier, session, committed := t.seen(), t.carrier(), p.dirty, p.committed
	go func() {
		var c commit
		if carrier == nil {
			c.err = session.ask(answer, t.CommitWait, []any{head.V}, &c.id)
		} else {
			c.err = session.query(answer, carrier.CommitWait(), []any{head.V}, func(rows *sql.Rows) (err error) {
				c.id.Valid = true
				c.id.V, c.keep, err = carrier.Row(head.V, rows)
				return err
			})
		}
		committed <- c
	}()
}

// settle is what follows a commit wait.
func (p *poller) settle(c commit) error {
	t := p.waits
	p.waits = nil
	r := &p.rounds[t.gate.number]
	r.step, r.due = 0, time.Time{} // a round follows at once
	switch {
	case server.Retryable(c.err): // the row's writer takes its time
	case c.err != nil && server.ConnectionLost(c.err):
		return c.err
	case c.err != nil:
		t.noWait = true
	case c.id.Valid && c.id.V > t.seen().V: // else a row of a later writer was found meanwhile
		if c.keep != nil {
			c.keep()
		}
		t.set(Head{c.id}, nil)
		p.note([]*topic{t})
		r.due = time.Now().Add(growth[0])
		r.step = 1
	case !c.id.Valid && !r.news:
		r.due = time.Now().Add(growth[afterNothing])
		r.step = afterNothing
	}
	r.hot, r.fresh = true, false
	return nil
}

// heads reads the heads of topics, and returns the topics whose head is new.
func (p *poller) heads(ctx context.Context, s *session, topics []*topic) (news []*topic, err error) {
	heads, failed, err := p.ask(ctx, s, topics)
	if err != nil {
		return nil, err
	}
	for i, t := range topics {
		if server.Retryable(failed[t]) {
			p.setAside(ctx, t)
			continue
		}
		if carrier := t.carrier(); carrier != nil && heads[i] != t.seen() {
			carrier.Outdate() // before anybody learns of the head
		}
		if t.set(heads[i], failed[t]) {
			news = append(news, t)
		}
	}
	return news, nil
}

// ask reads the heads of topics, one by one where a statement for many fails.
func (p *poller) ask(ctx context.Context, s *session, topics []*topic) (heads []Head, failed map[*topic]error, err error) {
	heads = make([]Head, len(topics))
	for begin := 0; begin < len(topics); begin += together {
		some := topics[begin:min(begin+together, len(topics))]
		err := ask(s, some, heads[begin:])
		if err == nil {
			continue
		}
		if ctx.Err() != nil || server.ConnectionLost(err) {
			return nil, nil, err
		}
		if failed == nil {
			failed = make(map[*topic]error)
		}
		for i, t := range some {
			if len(some) > 1 {
				err = ask(s, some[i:i+1], heads[begin+i:])
			}
			if server.ConnectionLost(err) {
				return nil, nil, err
			}
			if err != nil {
				failed[t] = err
			}
		}
	}
	return heads, failed, nil
}

func ask(s *session, topics []*topic, heads []Head) error {
	queries := make([]string, len(topics))
	var args []any
	into := make([]any, len(topics))
	for i, t := range topics {
		queries[i] = "(" + t.Topic.Head + ")"
		args = append(args, t.Args...)
		into[i] = &heads[i].Null
	}
	return s.ask(answer, "SELECT "+strings.Join(queries, ", "), args, into...)
}

// setAside reads the head of a topic whose table is locked over a connection of its own, so that the topic does not
// hold up the others, until it can be read again.
func (p *poller) setAside(ctx context.Context, t *topic) {
	p.aside[t] = true
	back, process := p.back, p.process
	p.asides.Go(func() {
		for ctx.Err() == nil {
			s, err := connect(ctx, process.config, readCommitted, "lock_wait_timeout", "30")
			if err == nil {
				stop := process.endWith(ctx, s)
				err = ask(s, []*topic{t}, make([]Head, 1))
				stop()
				s.close()
			}
			if err == nil || !server.Retryable(err) && !server.ConnectionLost(err) {
				break
			}
			pause(ctx, mostPoll)
		}
		select {
		case back <- t:
		case <-ctx.Done():
		}
	})
}

// refresh reads which tables have a trigger that wakes, when that may have changed.
func (p *poller) refresh(now time.Time) error {
	if now.Sub(p.looked) < time.Second || p.waits != nil {
		return nil
	}
	stale := p.triggers == nil
	for _, t := range p.all() {
		_, asked := p.triggers[t.Table]
		stale = stale || !asked
	}
	for _, r := range p.rounds { // after a hint without a row, which wake remove sends, too
		stale = stale || r.hot && !r.fresh && !r.news && !r.due.After(now)
	}
	if !stale {
		return nil
	}
	p.looked = now
	triggers := make(map[string]bool)
	for _, t := range p.all() {
		triggers[t.Table] = false
	}
	note := func(rows *sql.Rows) error {
		var table string
		if err := rows.Scan(&table); err != nil {
			return err
		}
		triggers[table] = true
		return nil
	}
	err := p.read.query(answer, "CALL mqnotify_wake_tables()", nil, note)
	if server.Is(err, server.ErrNoRoutine, server.ErrRoutineDenied) {
		err = nil // without the routines no session leads
	}
	if err != nil {
		return fmt.Errorf("waiting: read the triggers: %w", err)
	}
	p.triggers = triggers
	return nil
}

// regular polls the topics that no hint is certain to come for.
func (p *poller) regular(ctx context.Context, now time.Time) error {
	var topics []*topic
	polls, isDue := make(map[*topic]*poll), false
	for _, t := range p.all() {
		if p.triggers[t.Table] && t.gate.place.Load() != nil || p.aside[t] {
			continue
		}
		one := p.polls[t]
		if one == nil {
			one = &poll{wait: leastPoll, due: now}
		}
		polls[t] = one
		isDue = isDue || !one.due.After(now)
		if one.due.Before(now.Add(one.wait / 2)) { // those that are nearly due, too: one statement for all
			topics = append(topics, t)
		}
	}
	p.polls = polls
	if !isDue {
		return nil
	}
	news, err := p.heads(ctx, p.read, topics)
	if err != nil {
		return err
	}
	for _, t := range topics {
		one := polls[t]
		one.wait, one.before = min(one.wait+one.before, mostPoll), one.wait
		if slices.Contains(news, t) {
			one.wait, one.before = leastPoll, 0
		}
		one.due = now.Add(one.wait)
	}
	return nil
}
