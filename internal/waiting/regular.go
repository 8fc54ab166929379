package waiting

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
)

// readTriggers is how often the triggers are read while a topic has none.
const readTriggers = 5 * time.Second

// refresh reads which tables have a trigger that wakes, when that may have changed: at most once a second, but at once
// for a topic that is new, and every 5 s while a topic lacks one.
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
	err := p.dirty.query(answer, "CALL "+TablesRoutine+"()", nil, func(rows *sql.Rows) error {
		var table, on string
		if err := rows.Scan(&table, &on); err != nil {
			return err
		}
		triggers[table] |= event[on]
		return nil
	})
	switch {
	case err == nil:
		p.process.noRoutine.Store(false)
		for _, g := range p.gates() {
			g.retry()
		}
	case NoRoutine(err):
		p.process.noRoutine.Store(true)
	case interrupted(err): // behind a proxy that deals statements out to several sessions, a KILL for a leader may have met it
		p.stale = true
		return nil
	case server.ConnectionLost(err):
		return fmt.Errorf("waiting: read the triggers: %w", err)
	default: // a table that is locked, for one: what was known stays
		p.process.log.DebugContext(ctx, "the wake triggers could not be read", "error", err)
		for table := range triggers {
			triggers[table] = p.triggers[table]
		}
	}
	p.triggers = triggers
	return nil
}

// NoRoutine reports whether err says that the routines of wake triggers are not there, or not for this account, or that
// their account is gone.
func NoRoutine(err error) bool {
	return server.Is(err, server.ErrNoRoutine, server.ErrRoutineDenied, server.ErrNoSuchDefiner)
}

// regular polls the topics whose commits may bring no hint, and those whose queries have failed.
func (p *poller) regular(ctx context.Context, now time.Time) {
	var topics []*topic
	polls, isDue := make(map[*topic]*poll), false
	for _, t := range p.all() {
		if p.hinted(t) && t.gate.place.Load() != nil && !p.failing[t] || p.aside[t] {
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
