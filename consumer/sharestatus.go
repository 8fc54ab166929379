package consumer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/schema"
)

// MemberStatus is the status of a member of a shared group.
type MemberStatus struct {
	// Member is its name; empty for a member without partitions, and for the free partitions.
	Member string
	// Session is the connection that holds its locks; 0 for the free partitions.
	Session uint64
	// Partitions are the numbers of its partitions.
	Partitions []int
	// Settled is the smallest of their offsets.
	Settled uint64
	// Waiting is how many of their rows are not done.
	Waiting int
	// MoreWaiting is true if there are, or may be, more than Waiting.
	MoreWaiting bool
}

// part is a partition's stored progress and its owner.
type part struct {
	position.Progress
	member string
	owner  uint64
}

// sharedStatus returns the status of a shared group.
func (g *storedGroup) sharedStatus(ctx context.Context, r *rows, of sharing, head uint64) (s GroupStatus, err error) {
	now, parts, err := readParts(ctx, r, of)
	if err != nil {
		return s, err
	}
	common := parts[0].Progress
	for _, p := range parts[1:] {
		common = common.Common(&p.Progress)
	}
	if s, err = g.of(ctx, r, common, head); err != nil {
		return s, err
	}
	s.Session = now.coordinator
	var members []MemberStatus
	add := func(session uint64) {
		if session != 0 && !slices.ContainsFunc(members, func(m MemberStatus) bool { return m.Session == session }) {
			members = append(members, MemberStatus{Session: session})
		}
	}
	for _, session := range now.slots {
		add(session)
	}
	free := MemberStatus{}
	waiting, more, err := r.countParts(ctx, of, parts, common, head)
	if err != nil {
		return s, err
	}
	s.Waiting, s.MoreWaiting = 0, more
	for n, p := range parts {
		m := &free
		if at := slices.IndexFunc(members, func(m MemberStatus) bool { return m.Session == p.owner }); at >= 0 {
			m = &members[at]
			m.Member = p.member
		}
		if len(m.Partitions) == 0 || p.Settled < m.Settled {
			m.Settled = p.Settled
		}
		m.Partitions = append(m.Partitions, n)
		m.Waiting += waiting[n]
		m.MoreWaiting = more
		s.Waiting += waiting[n]
	}
	if s.Members = members; len(free.Partitions) > 0 {
		s.Members = append(s.Members, free)
	}
	s.Partitions, s.PartitionBy = of.parts, byText(of.by)
	if s.Session == 0 && len(members) > 0 {
		s.Session = members[0].Session // a coordinator is missing for a moment, and one of the members becomes it
	}
	return s, nil
}

// readParts reads the partitions' rows and the sessions that hold their locks.
func readParts(ctx context.Context, r *rows, of sharing) (now snapshot, parts []part, err error) {
	var stored []struct {
		Settled   uint64
		Delivered []byte
		Member    string
	}
	err = r.session.Do(ctx, func(conn *sqlx.Conn) error {
		err := conn.SelectContext(ctx, &stored, "SELECT settled, delivered, member FROM "+schema.PartitionTable+
			" WHERE topic = ? AND group_name = ? AND part < ? ORDER BY part", of.topic, of.group, of.parts)
		if err != nil {
			return stateError("read partitions", err)
		}
		now, err = readSnapshot(ctx, conn, of, sharePrefix(r.table.Schema, of.topic, of.group))
		return err
	})
	if err != nil {
		return now, nil, err
	}
	for n, row := range stored {
		done, err := position.Decode(row.Delivered, row.Settled)
		if err != nil {
			return now, nil, fmt.Errorf("consumer: offset of partition %d of group %q: %w", n, of.group, err)
		}
		parts = append(parts, part{position.Progress{Settled: row.Settled, Done: done}, row.Member, now.owners[n]})
	}
	if len(parts) != of.parts {
		return now, nil, incomplete(of, len(parts))
	}
	return now, parts, nil
}

// countParts counts the rows of each partition that are not done. It reads at most countLimit rows that not all partitions have done;
// more means that there may be others.
func (r *rows) countParts(ctx context.Context, of sharing, parts []part, common position.Progress, head uint64) (waiting map[int]int, more bool, err error) {
	expression, err := of.expression(r.table, r.key)
	if err != nil {
		return nil, false, err
	}
	gaps := slices.Collect(common.Done.Missing(common.Settled, max(head, common.Done.Max())))
	if len(gaps) == 0 {
		return nil, false, nil
	}
	some := gaps[:min(len(gaps), maxRanges)]
	args := make([]any, 0, 2*len(some)+1)
	for _, s := range some {
		args = append(args, s.Lo, s.Hi)
	}
	var rows []struct {
		ID   uint64
		Part int
	}
	err = r.session.Do(ctx, func(conn *sqlx.Conn) error {
		return conn.SelectContext(ctx, &rows, "SELECT "+r.key+" AS id, "+expression+" AS part FROM "+ident.Quote(r.table.Name)+" WHERE "+
			strings.TrimSuffix(strings.Repeat(r.key+" BETWEEN ? AND ? OR ", len(some)), " OR ")+
			" ORDER BY "+r.key+" LIMIT ?", append(args, countLimit+1)...)
	})
	if err != nil {
		return nil, false, fmt.Errorf("consumer: count rows: %w", err)
	}
	more = len(rows) > countLimit || len(some) < len(gaps)
	waiting = make(map[int]int)
	for _, row := range rows[:min(len(rows), countLimit)] {
		if p := parts[row.Part]; row.ID > p.Settled && !p.Done.Contains(row.ID) {
			waiting[row.Part]++
		}
	}
	return waiting, more, nil
}
