package waiting

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
)

// readTriggers is how often the triggers are read while a topic lacks one.
const readTriggers = 5 * time.Second

// refresh reads which tables have a working wake trigger if that may have changed: at most once a second, but at once
// for a new topic, and every 5 s while a topic lacks one.
func (p *poller) refresh(ctx context.Context, now time.Time) error {
	recent := now.Sub(p.readAt) < time.Second
	p.stale = p.stale || p.process.lacks.Load() && now.Sub(p.readAt) > readTriggers
	for _, t := range p.all() {
		if _, asked := p.triggers[t.Table]; !asked {
			p.stale, recent = true, false
		}
	}
	if !p.stale || recent || p.waits != nil {
		return nil
	}
	p.readAt, p.stale = now, false
	triggers := make(map[string]Events)
	for _, t := range p.all() {
		triggers[t.Table] = 0
	}
	err := p.dirty.query(answer, "CALL "+TablesRoutine+"()", nil, func(rows *sql.Rows) error { return addTrigger(triggers, rows) })
	switch {
	case err == nil:
		p.process.noRoutine.Store(false)
		for _, g := range p.gates() {
			g.retry()
		}
	case NoRoutine(err):
		p.process.noRoutine.Store(true)
	case server.Is(err, server.ErrQueryInterrupted): // a proxy that distributes statements to several sessions may have sent it to a leader, which a KILL met
		p.stale = true
		return nil
	case server.ConnectionLost(err):
		return fmt.Errorf("waiting: read the triggers: %w", err)
	default: // for example a locked table: keep the triggers that were known
		p.process.log.DebugContext(ctx, "the wake triggers could not be read", "error", err)
		for table := range triggers {
			triggers[table] = p.triggers[table]
		}
	}
	p.triggers = triggers
	return nil
}

// NoRoutine reports whether err means that the routines of wake triggers do not exist, that this account may not call them, or that
// the account that made them is gone.
func NoRoutine(err error) bool {
	return server.Is(err, server.ErrNoRoutine, server.ErrRoutineDenied, server.ErrNoSuchDefiner)
}

// regular polls the topics whose commits may bring no hint, and those whose queries have failed.
func (p *poller) regular(ctx context.Context, now time.Time) {
	var topics []*topic
	polls, isDue := make(map[*topic]*poll), false
	for _, t := range p.all() {
		if p.hinted(t) && t.gate.place.Load() != nil && !t.failing || t.aside {
			continue
		}
		one := p.polls[t]
		if one == nil {
			one = &poll{wait: leastPoll, due: now}
		}
		polls[t] = one
		isDue = isDue || !one.due.After(now)
		if one.due.Before(now.Add(one.wait / 2)) { // also those that are nearly due, because one statement reads all
			topics = append(topics, t)
		}
	}
	p.polls = polls
	if !isDue {
		return
	}
	news := p.heads(ctx, topics)
	for _, t := range topics {
		one := polls[t]
		one.wait, one.before = min(one.wait+one.before, mostPoll), one.wait
		if slices.Contains(news, t) {
			one.wait, one.before = leastPoll, 0
		}
		one.due = now.Add(one.wait)
	}
}
