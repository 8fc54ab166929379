package waiting

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
)

const (
	// gtidWait is the longest wait for a commit. It is bounded because MySQL refuses gtid_mode=OFF while a session waits for a
	// GTID, and does not end the wait.
	gtidWait = time.Minute
	// gtidTrial is the longest wait for a commit of an origin that was not seen to grow.
	gtidTrial = time.Second
)

var errNoGTID error = lasting("the server has no GTIDs to wait for")

// follow makes every commit on the server a hint for all topics as long as some topic gets no hints from its writers: its table
// has no trigger, or its writers are on another server. It needs MySQL with gtid_mode=ON and a binary log.
func (p *process) follow(ctx context.Context) {
	keep(ctx, nil, func() error {
		select {
		case <-p.lacking:
		case <-ctx.Done():
			return nil
		}
		err := p.followCommits(ctx)
		p.commits.Store(false)
		p.log.DebugContext(ctx, "commits are not followed", "error", err)
		return err
	})
}

// followCommits waits for one commit after another, until no topic needs that.
//
// A server makes a change visible before it counts its transaction as executed. If a poll did not see a change, it began
// before the GTID of that change was executed, so the wait that follows ends with that GTID.
func (p *process) followCommits(ctx context.Context) error {
	s, err := connect(ctx, p.config, readCommitted, "wait_timeout", "180")
	if err != nil {
		return err
	}
	defer s.close()
	defer p.endWith(ctx, s, noTables)()
	if !s.caps.GTID {
		return errNoGTID
	}
	next, rest := newGTIDNext(s), least
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
			_ = server.Pause(ctx, rest)
		}
		wait := gtidTrial
		if next.sure {
			wait = gtidWait
		}
		begun := time.Now()
		err = s.ask(wait+answer, "SELECT WAIT_FOR_EXECUTED_GTID_SET(?, ?)", []any{next.gtid, wait.Seconds()}, new(sql.NullInt64))
		if server.Is(err, server.ErrGTIDModeOff) {
			return errNoGTID
		}
		if err != nil {
			return err
		}
		// Many commits share one hint.
		if rest = max(rest/2, least); time.Since(begun) < time.Millisecond {
			rest = min(4*rest, most)
		}
	}
	return nil
}

// gtidNext predicts the next transaction.
//
// A server gives its own commits the smallest free number. If other origins grow, on a replica, in a group, with
// tagged GTIDs, gtidNext predicts that the origin that grew last grows again.
type gtidNext struct {
	session  *session
	server   string // its UUID
	gtid     string
	sure     bool   // the origin was seen to grow, or is expected to
	executed string // the gtid_executed of the prediction
	own      string // the server's own next transaction
}

func newGTIDNext(s *session) gtidNext {
	return gtidNext{session: s, server: strings.ToLower(s.caps.ServerUUID), sure: !s.caps.ReadOnly && !s.caps.GroupReplication}
}

// see reads the prediction from the current gtid_executed, and reports whether that has changed since the last call.
func (n *gtidNext) see(executed string) (changed bool, err error) {
	first := n.gtid == ""
	if executed == n.executed && !first {
		return false, nil
	}
	var free, grown string
	err = n.session.ask(answer, "SELECT GTID_SUBTRACT(CONCAT(?, ':1-9223372036854775806'), ?), GTID_SUBTRACT(?, ?)",
		[]any{n.server, executed, executed, n.executed}, &free, &grown)
	if err != nil {
		return false, err
	}
	number, _, _ := strings.Cut(strings.TrimPrefix(free, n.server+":"), ":")
	number, _, _ = strings.Cut(number, "-")
	own := n.server + ":" + number
	switch {
	case first:
		n.gtid, n.sure = own, n.sure && number != "1"
	case own != n.own:
		n.gtid, n.sure = own, true
	case grown != "":
		if n.gtid, err = following(grown); err != nil {
			return false, err
		}
		n.sure = true
	}
	n.executed, n.own = executed, own
	return !first, nil
}

// following returns the transaction after the last one of a set such as "uuid:1-5:7:tag:1-3, uuid:1".
func following(set string) (string, error) {
	last := strings.TrimSpace(set[strings.LastIndex(set, ",")+1:])
	uuid, items, _ := strings.Cut(last, ":")
	origin, number := uuid, ""
	for item := range strings.SplitSeq(items, ":") {
		if number = item[strings.LastIndex(item, "-")+1:]; item != "" && (item[0] < '0' || item[0] > '9') { // a tag of the numbers after it
			origin = uuid + ":" + item
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return "", fmt.Errorf("waiting: the server's GTIDs have grown by %q: %w", set, err)
	}
	return origin + ":" + strconv.FormatUint(n+1, 10), nil
}
