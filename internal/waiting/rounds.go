package waiting

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
)

// growing are the first waits between two rounds of a gate after a hint.
var growing = [...]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond, 8 * time.Millisecond,
	13 * time.Millisecond, 20 * time.Millisecond,
}

const (
	// afterNothing is the step after a hint without a row: its wait is longer than the leader's rest,
	// so that the next round is the last.
	afterNothing = 2
	// patient is the number of steps after which a transaction has been open for about 4 s.
	patient = 200
)

// growth returns the wait after a step. The last of growing is repeated while the transactions that caused a hint are
// open. If they take longer, they are polled once a second; the commit wait still sees the commit of one at once.
func growth(step int) time.Duration {
	if step > patient {
		return mostPoll
	}
	return growing[min(step, len(growing)-1)]
}

// round makes one round for the gates that are due.
func (p *poller) round(ctx context.Context, due [allGates]bool) error {
	var topics []*topic
	var used [allGates]bool // gates with a topic and a place; without a place the topics are polled regularly
	for _, t := range p.all() {
		if due[t.gate.number] && !t.aside && !t.failing {
			topics = append(topics, t)
			used[t.gate.number] = t.gate.place.Load() != nil
		}
	}
	var can [allGates]bool // gates whose leader can be woken
	switch {
	case p.waits != nil: // the dirty session is busy until the commit wait has ended
		if p.process.helper.ready(ctx) {
			p.note(p.heads(ctx, topics))
		}
	case len(topics) == 1 && p.rounds[topics[0].gate.number].fresh && topics[0].commitWait():
		p.wait(topics[0])
	default:
		var err error
		if can, err = p.check(ctx, due, topics); err != nil {
			return err
		}
	}
	now := time.Now()
	for g := range due {
		if !due[g] {
			continue
		}
		r := &p.rounds[g]
		// A trigger may have been removed if a hint comes without a row. If rows keep coming, the leader's timeouts may have found them.
		if !r.asked && (!r.fresh && !r.news || now.Sub(p.readAt) > p.process.leaderWait) {
			r.asked, p.stale = true, true
		}
		if r.fresh = false; can[g] || !used[g] {
			r.hot = false
			continue
		}
		r.due = now.Add(growth(r.step))
		r.step++
	}
	return nil
}

// note restarts the growing waits of every gate that has a topic with news.
func (p *poller) note(news []*topic) {
	for _, t := range news {
		r := &p.rounds[t.gate.number]
		r.step, r.news = 0, true
	}
}

// check makes the two checks of the protocol, and reads the heads that have moved or are about to. It returns the gates
// that pass: their leader can be woken, and no row of their topics, committed or not, is above its head.
//
// The first statement makes both checks in no particular order, because most rounds end with it. Only the second statement, which
// looks for rows again if the leader can be woken, decides.
func (p *poller) check(ctx context.Context, due [allGates]bool, topics []*topic) (can [allGates]bool, err error) {
	locks := p.locks(due)
	heads, failed, err := p.ask(ctx, p.dirty, append(locks, topics...))
	if err != nil {
		return can, err
	}
	moving := p.moving(ctx, topics, heads[len(locks):], failed)
	for i, lock := range locks {
		can[lock.gate.number] = heads[i].Valid && heads[i].V == 1
	}
	for _, t := range moving {
		can[t.gate.number] = false
	}
	quiet := slices.DeleteFunc(slices.Clone(topics), func(t *topic) bool { return !can[t.gate.number] || t.aside || t.failing })
	if len(quiet) > 0 {
		if heads, failed, err = p.ask(ctx, p.dirty, quiet); err != nil {
			return can, err
		}
		more := p.moving(ctx, quiet, heads, failed)
		for _, t := range more {
			can[t.gate.number] = false
		}
		moving = append(moving, more...)
	}
	if len(moving) == 1 && p.waitsFor(moving[0]) {
		p.wait(moving[0])
		return can, nil
	}
	news := p.heads(ctx, moving)
	p.note(news)
	for _, t := range moving {
		if p.waitsFor(t) && !slices.Contains(news, t) {
			p.wait(t)
			break
		}
	}
	return can, nil
}

// moving returns the topics whose head in a dirty read differs from the one that was seen. It records which of them
// have a row above the head, for a commit wait, and which queries have failed.
func (p *poller) moving(ctx context.Context, topics []*topic, heads []Head, failed map[*topic]error) (moving []*topic) {
	for i, t := range topics {
		s := t.state.Load()
		t.above = heads[i].Valid && (!s.head.Valid || heads[i].V > s.head.V)
		switch err := failed[t]; {
		case err != nil:
			p.fails(ctx, t, err)
		case !s.known || heads[i] != s.head:
			moving = append(moving, t)
		}
	}
	return moving
}

// waitsFor reports whether the poller can wait for the commit of a row that the last dirty read has seen. If the head
// went back because rows were deleted, there is no such row.
func (p *poller) waitsFor(t *topic) bool {
	return t.above && t.commitWait() && !t.aside && !t.failing
}

// locks returns queries that return 1 for the gates whose leader can be woken: the leader holds the wake lock, and, if the
// leader belongs to this process, its last statement has begun.
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

// gates returns the gates that have topics.
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
	head, carrier, committed := t.state.Load().head, t.carrier(), p.committed
	query := p.dirty.query
	if t.gate.place.Load() != nil { // otherwise hints are too few to keep a prepared statement
		query = p.dirty.queryPrepared
	}
	go func() {
		c := commit{carrier: carrier}
		if carrier == nil {
			c.err = query(answer, t.CommitWait, []any{head.V}, func(rows *sql.Rows) error { return rows.Scan(&c.id) })
		} else {
			c.err = query(answer, carrier.CommitWait(), []any{head.V}, func(rows *sql.Rows) (err error) {
				c.id.Valid = true
				c.id.V, c.keep, err = carrier.Row(head.V, rows)
				return err
			})
		}
		committed <- c
	}()
}

// settle processes the result of a commit wait.
func (p *poller) settle(c commit) error {
	t := p.waits
	p.waits = nil
	r := &p.rounds[t.gate.number]
	r.due = time.Time{} // a round follows at once
	switch {
	case server.Retryable(c.err): // the row's writer is still open
	case c.err != nil && server.ConnectionLost(c.err):
		t.noWait = t.noWait || c.carrier != nil // the row may have been too large for the time; the next round reads the id alone
		return c.err
	case c.err != nil:
		t.noWait = true
	case c.id.Valid && c.id.V > t.state.Load().head.V: // otherwise a later row was found in the meantime
		// Hand the row over, or outdate the carrier, before a listener can see the new head.
		if carrier := t.carrier(); c.keep != nil && carrier == c.carrier {
			c.keep()
		} else if carrier != nil {
			carrier.Outdate()
		}
		t.set(Head{c.id}, nil)
		p.note([]*topic{t})
		r.due = time.Now().Add(growth(0))
		r.step = 1
	case !c.id.Valid && !r.news:
		r.due = time.Now().Add(growth(afterNothing))
		r.step = afterNothing
	}
	r.hot, r.fresh = true, false
	return nil
}

// heads reads the committed heads of topics, and returns the topics whose head is new. If the helper's
// connection fails it returns none. It then marks no topic as unchanged, so the next round reads again.
func (p *poller) heads(ctx context.Context, topics []*topic) (news []*topic) {
	if len(topics) == 0 {
		return nil
	}
	var heads []Head
	var failed map[*topic]error
	err := p.process.helper.with(ctx, func(s *session) (err error) {
		heads, failed, err = p.ask(ctx, s, topics)
		return err
	})
	if err != nil {
		p.process.log.DebugContext(ctx, "heads could not be read; trying again", "error", err)
		p.unknown(ctx, topics, err)
		return nil
	}
	for i, t := range topics {
		if failed[t] != nil {
			p.fails(ctx, t, failed[t])
			continue
		}
		if t.failing { // hints for it were ignored meanwhile, and its trigger may have been dropped
			t.failing, p.stale = false, true
			p.rounds[t.gate.number] = round{hot: true, fresh: true}
		}
		if carrier := t.carrier(); carrier != nil && heads[i] != t.state.Load().head {
			carrier.Outdate() // before a listener can see the new head
		}
		if t.set(heads[i], nil) {
			t.noWait = false
			news = append(news, t)
		}
	}
	return news
}

// unknown gives the error to the listeners that wait for a topic's first head.
func (p *poller) unknown(ctx context.Context, topics []*topic, err error) {
	for _, t := range topics {
		if ctx.Err() == nil && !t.state.Load().known {
			t.set(Head{}, err)
		}
	}
}

// fails records that the query of a topic has failed. The topic leaves the rounds until the query succeeds.
func (p *poller) fails(ctx context.Context, t *topic, err error) {
	if server.Retryable(err) {
		p.setAside(ctx, t)
		return
	}
	t.failing = true
	t.set(Head{}, err)
}

// ask reads the heads of topics together, or one by one if the common statement fails.
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

// setAside reads the head of a topic whose table is locked over a connection of its own, until that succeeds, so that the topic does
// not delay the others.
func (p *poller) setAside(ctx context.Context, t *topic) {
	if t.aside {
		return
	}
	t.aside = true
	back, process := p.back, p.process
	p.asides.Go(func() {
		for ctx.Err() == nil {
			s, err := connect(ctx, process.config, readCommitted, "lock_wait_timeout", "5")
			if err == nil {
				stop := process.endWith(ctx, s, opened)
				err = ask(s, []*topic{t}, make([]Head, 1))
				stop()
				s.close()
			}
			if err == nil || !server.Retryable(err) && !server.ConnectionLost(err) {
				break
			}
			_ = server.Pause(ctx, mostPoll)
		}
		select {
		case back <- t:
		case <-ctx.Done():
		}
	})
}
