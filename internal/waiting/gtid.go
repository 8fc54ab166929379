package waiting

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
)

const (
	// gtidWait is the longest wait for a commit. MySQL refuses gtid_mode=OFF while a session waits for a GTID, and ends no
	// wait for it.
	gtidWait = time.Minute
	// gtidTrial is the longest wait for a commit of an origin that was not seen to grow.
	gtidTrial = time.Second
)

var errNoGTID = errors.New("the server has no GTIDs to wait for")

// follow makes every commit on the server a hint for all topics, while there is a topic whose writers give none: its table
// has no trigger, or its writers are on another server. It needs MySQL with gtid_mode=ON and a binary log.
func (p *process) follow(ctx context.Context) {
	waits := exponential()
	for {
		select {
		case <-p.lacking:
		case <-ctx.Done():
			return
		}
		begun := time.Now()
		err := p.followCommits(ctx)
		p.commits.Store(false)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if time.Since(begun) > time.Second {
			waits.Reset()
		}
		wait := waits.NextBackOff()
		if errors.Is(err, errNoGTID) {
			wait = impossible
		}
		p.log.DebugContext(ctx, "commits are not followed", "error", err)
		pause(ctx, wait)
	}
}

// followCommits waits for one commit after the other, until no topic needs that.
//
// A server makes a change visible before it counts its transaction as executed. So a poll that did not see a change began
// before the GTID of that change was executed, and the wait that follows ends with it.
func (p *process) followCommits(ctx context.Context) error {
	s, err := connect(ctx, p.config, readCommitted, "wait_timeout", "180")
	if err != nil {
		return err
	}
	defer s.close()
	defer p.endWith(ctx, s)()
	if !s.caps.GTID {
		return errNoGTID
	}
	next, rest := newGTIDNext(s.caps), least
	for ctx.Err() == nil && p.lacks.Load() {
		var mode, executed string
		if err := s.ask(answer, "SELECT @@GLOBAL.gtid_mode, @@GLOBAL.gtid_executed", nil, &mode, &executed); err != nil {
			return err
		}
		if mode != "ON" {
			return errNoGTID
		}
		changed, err := next.see(executed)
		if err != nil {
			return err
		}
		if changed || !p.commits.Swap(true) {
			for gate := range p.hints {
				p.hint(gate)
			}
			pause(ctx, rest)
		}
		wait := gtidTrial
		if next.sure {
			wait = gtidWait
		}
		begun := time.Now()
		err = s.ask(wait+answer, "SELECT WAIT_FOR_EXECUTED_GTID_SET(?, ?)", []any{next.gtid(), wait.Seconds()}, new(sql.NullInt64))
		if server.Is(err, server.ErrGTIDModeOff) {
			return errNoGTID
		}
		if err != nil {
			return err
		}
		// Under many commits the hints are for several at once.
		if rest = max(rest/2, least); time.Since(begun) < time.Millisecond {
			rest = min(4*rest, most)
		}
	}
	return nil
}
