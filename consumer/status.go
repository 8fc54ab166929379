package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// countLimit bounds the rows that a count reads, and so its cost.
const countLimit = 10_000

// Status is the progress of a topic's groups.
type Status struct {
	Topic  string        // the table's name, as the server has it
	Head   uint64        // the largest id; 0 for an empty table
	Groups []GroupStatus // by name
}

// GroupStatus is the progress of a group by its stored offset, which lags a little behind its handler (Options.FlushInterval).
type GroupStatus struct {
	Group  string
	Member string // the name of the member that was active last
	// Session is the connection of the active member, which holds the group's lock; 0 if no member is active.
	Session uint64
	// Leased is true if a member holds the group's lease, which replaces the lock if several servers take writes.
	Leased bool
	// Settled is the offset's watermark: every row up to this id is done, and no further row can appear there.
	Settled uint64
	// Done is how many ids above Settled are done.
	Done uint64
	// Gaps is the number of ranges of ids above Settled and below the largest done id that are not done: rows that wait for
	// another attempt or a transaction's end, and ids that may never be rows.
	Gaps int
	// Behind is how many ids up to the head are not done. At most as many rows are waiting now.
	Behind uint64
	// Waiting is how many existing rows are not done, whether or not they meet the consumer's condition (Options.Where).
	Waiting int
	// MoreWaiting is true if there are, or may be, more than Waiting: rows are counted up to 10,000.
	MoreWaiting bool
	// Moved is the time since the offset was stored, by the server's clock.
	Moved time.Duration
	// DeadLetters is the number of the group's dead letters, counted up to 10,000.
	DeadLetters int
	// MoreDeadLetters is true if there are more than DeadLetters.
	MoreDeadLetters bool
	// BelowOffset means that the table's ids end below the offset: a consumer of the group fails with ErrBelowOffset.
	BelowOffset bool

	// Partitions is the number of partitions of a shared group, 0 for any other. In a shared group Member and Session are the
	// coordinator's, Settled is the smallest offset of all partitions, and Done, Gaps and Behind count the ids that are done in
	// all of them.
	Partitions int
	// PartitionBy is the key of the partitions: "header key", "column customer", or "the rows' ids".
	PartitionBy string
	// Members are the members of a shared group. If some partitions are free, the last element has no session and contains
	// these.
	Members []MemberStatus
}

// Status reads the progress of the consumer's group, or of all groups of the topic if Options.Group is empty. The consumer need not
// run. Status uses a connection of its own for a moment and writes nothing; it counts at most 10,000 rows a group. Its errors are
// notify.ErrNoTable and the other errors about the table, errors of the server such as a missing privilege, and
// notify.ErrNoState, with which it returns what it can read without those tables.
func (c *Consumer) Status(ctx context.Context) (_ *Status, err error) {
	t, err := c.table(ctx)
	if err != nil {
		return nil, err
	}
	session, err := core.NewSession(ctx, c.db, core.SessionOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	r, err := newRows(session, t, Options{Key: c.options.Key})
	if err != nil {
		return nil, err
	}
	// Read the offsets before the head, so that no offset is ahead of the head.
	stored, missing := storedGroups(ctx, session, t, c.options.Group)
	if missing != nil && !errors.Is(missing, notify.ErrNoState) {
		return nil, missing
	}
	if caps := session.Capabilities(); caps.Galera || caps.MultiPrimary {
		for i := range stored {
			if err := stored[i].lookForLease(ctx, c.db, t); err != nil {
				return nil, err
			}
		}
	}
	status := &Status{Topic: t.Name}
	if status.Head, _, err = largest(ctx, r); err != nil {
		return nil, err
	}
	for i := range stored {
		group, err := stored[i].status(ctx, r, status.Head)
		if err != nil {
			return nil, err
		}
		status.Groups = append(status.Groups, group)
	}
	return status, missing
}

// storedGroup is an offset's row, with the session that holds the group's lock.
type storedGroup struct {
	Name      string `db:"group_name"`
	Settled   uint64
	Delivered []byte
	Member    string
	Age       int64 // in microseconds
	Session   uint64
	Leased    bool
}

// storedGroups reads the offset of the group, or of all groups if group is empty.
func storedGroups(ctx context.Context, session *core.Session, t *table.Table, group string) (groups []storedGroup, err error) {
	err = session.Do(ctx, func(conn *sqlx.Conn) error {
		err := conn.SelectContext(ctx, &groups, "SELECT group_name, settled, delivered, member,"+
			" TIMESTAMPDIFF(MICROSECOND, updated_at, NOW(6)) AS age FROM "+schema.OffsetTable+
			" WHERE topic = ? AND (group_name = ? OR ? = '') ORDER BY group_name", t.Name, group, group)
		if err != nil {
			return stateError("read offsets", err)
		}
		for i := range groups {
			lock := groupLock(t.Schema, t.Name, groups[i].Name)
			if err := conn.GetContext(ctx, &groups[i].Session, "SELECT COALESCE(IS_USED_LOCK(?), 0)", lock); err != nil {
				return fmt.Errorf("consumer: look for the member of group %q: %w", groups[i].Name, err)
			}
		}
		return nil
	})
	return groups, err
}

// lookForLease reads whether a member holds the group's lease.
func (g *storedGroup) lookForLease(ctx context.Context, db *notify.DB, t *table.Table) error {
	err := db.Pool().GetContext(ctx, &g.Leased, "SELECT EXISTS (SELECT 1 FROM "+schema.LeaseTable+" WHERE name = ? AND expires_at > UTC_TIMESTAMP(6))",
		groupLock(t.Schema, t.Name, g.Name))
	if err != nil {
		return stateError("look for the lease of group "+g.Name, err)
	}
	return nil
}

// status returns the group's status.
func (g *storedGroup) status(ctx context.Context, r *rows, head uint64) (GroupStatus, error) {
	of, shared, err := decodeSharing(r.table.Name, g.Name, g.Delivered)
	if err != nil {
		return GroupStatus{}, err
	}
	if shared {
		return g.sharedStatus(ctx, r, of, head)
	}
	done, err := position.Decode(g.Delivered, g.Settled)
	if err != nil {
		return GroupStatus{}, fmt.Errorf("consumer: offset of group %q: %w", g.Name, err)
	}
	return g.of(ctx, r, position.Progress{Settled: g.Settled, Done: done}, head)
}

// of returns the status of a group with the progress p.
func (g *storedGroup) of(ctx context.Context, r *rows, p position.Progress, head uint64) (_ GroupStatus, err error) {
	done := p.Done
	s := GroupStatus{
		Group: g.Name, Member: g.Member, Session: g.Session, Leased: g.Leased, Settled: p.Settled,
		Moved: time.Duration(max(0, g.Age)) * time.Microsecond,
	}
	gaps := slices.Collect(done.Missing(s.Settled, done.Max()))
	s.Gaps = len(gaps)
	ahead := max(s.Settled, done.Max()) // the largest done id
	s.Done = ahead - s.Settled
	for _, gap := range gaps {
		s.Done -= gap.Hi - gap.Lo + 1
		s.Behind += gap.Hi - gap.Lo + 1
	}
	if head > ahead {
		s.Behind += head - ahead
		gaps = slices.Insert(gaps, 0, position.Span{Lo: ahead + 1, Hi: head})
	}
	if s.Waiting, s.MoreWaiting, err = r.count(ctx, gaps); err != nil {
		return s, err
	}
	if err := checkHead(ctx, r, s.Settled, "the offset is %d"); err != nil {
		if s.BelowOffset = errors.Is(err, ErrBelowOffset); !s.BelowOffset {
			return s, err
		}
	}
	s.DeadLetters, s.MoreDeadLetters, err = countRows(ctx, r.session, schema.DeadLetterTable+" WHERE topic = ? AND group_name = ?", r.table.Name, g.Name)
	if err != nil {
		return s, stateError("count dead letters", err)
	}
	return s, nil
}

// count counts the rows of the first maxRanges spans, up to countLimit.
func (r *rows) count(ctx context.Context, spans []position.Span) (n int, more bool, err error) {
	if len(spans) == 0 {
		return 0, false, nil
	}
	some := spans[:min(len(spans), maxRanges)]
	args := make([]any, 0, 2*len(some))
	for _, s := range some {
		args = append(args, s.Lo, s.Hi)
	}
	n, more, err = countRows(ctx, r.session, ident.Quote(r.table.Name)+" WHERE "+
		strings.TrimSuffix(strings.Repeat(r.key+" BETWEEN ? AND ? OR ", len(some)), " OR "), args...)
	if err != nil {
		return n, more, fmt.Errorf("consumer: count rows: %w", err)
	}
	return n, more || len(some) < len(spans), nil
}

func countRows(ctx context.Context, session *core.Session, from string, args ...any) (n int, more bool, err error) {
	err = session.Do(ctx, func(conn *sqlx.Conn) error {
		return conn.GetContext(ctx, &n, "SELECT COUNT(*) FROM (SELECT 1 FROM "+from+" LIMIT "+
			strconv.Itoa(countLimit+1)+") AS counted", args...)
	})
	return min(n, countLimit), n > countLimit, err
}
