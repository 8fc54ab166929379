package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/server"
)

const (
	// maxRanges is how many gaps one statement reads again. If there are more, the reader reads the ids alone first.
	maxRanges = 100
	// maxProbes bounds the rows that are probed for a lock before a gap is settled by time alone.
	maxProbes = 64
	// idsAtOnce is how many ids one statement reads.
	idsAtOnce = 10_000
)

// pollWriters asks which writers are open, and reads the gaps again that may have been filled by a writer that has ended. The caller
// must have read the head before. An answer that comes later belongs to the head of the first question.
func (r *reader) pollWriters(ctx context.Context, head uint64) (came bool, err error) {
	if time.Now().Before(r.nextPoll) {
		return false, nil
	}
	if r.asked == 0 {
		r.asked = head
	}
	open, err := r.source.open(ctx)
	now := time.Now()
	r.nextPoll = now.Add(r.source.pace())
	if errors.Is(err, errStale) && !r.waits() { // no gap settles, but new rows need not wait
		n, err := r.reread(ctx, position.Span{Lo: r.wm.settled + 1, Hi: r.wm.frontier})
		return n > 0, err
	}
	if errors.Is(err, errStale) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	head, r.asked = r.asked, 0
	grace, err := r.besides(ctx)
	if err != nil {
		return false, err
	}
	r.given = grace
	again, ended := r.wm.observe(head, open, now, grace)
	if ended > r.wm.settled && grace > 0 {
		if ended, err = r.unlocked(ctx, ended); err != nil {
			return false, err
		}
	}
	if r.keyed {
		again.Lo = r.wm.settled + 1 // a writer that seems to be open may have committed since the poll
	}
	if r.waits() { // read only gaps that settle now, so that rows come in order
		again = position.Span{Lo: r.wm.settled + 1, Hi: ended}
	}
	n, err := r.reread(ctx, again)
	if err != nil {
		return false, err
	}
	r.wm.end(ended)
	if r.wm.settled > r.handed {
		return true, r.hand(ctx, batch{})
	}
	return n > 0, nil
}

const (
	// The log says what rows wait for after waitSaid, and then every waitSaidAgain.
	waitSaid      = 2 * time.Second
	waitSaidAgain = 10 * time.Second
)

// sayWait reports to the log and to Options.Waiting which id holds rows back, and for how long at most.
func (r *reader) sayWait(ctx context.Context) {
	now := time.Now()
	switch {
	case r.sayNext.IsZero():
		r.sayNext = now.Add(waitSaid)
		return
	case now.Before(r.sayNext):
		return
	}
	r.sayNext = now.Add(waitSaidAgain)
	id, most := r.wm.awaited(now, r.given)
	attributes := []any{"id", id}
	if r.waiting != nil {
		r.waiting(id, most)
	}
	if most > 0 {
		attributes = append(attributes, "up_to", most.Round(time.Second))
	}
	r.log.InfoContext(ctx, "waiting for an id that an open transaction may still write: the rows after it are held back", attributes...)
}

// besides returns how long a gap stays open in addition to the writers that the source reports.
func (r *reader) besides(ctx context.Context) (time.Duration, error) {
	if r.source.name() == writersUnknown {
		return r.grace, nil
	}
	before := r.replication.certain
	applies, err := r.replication.applies(ctx)
	if err != nil || !applies {
		return 0, err
	}
	if !before && r.replication.certain {
		if r.grouped {
			return 0, errReplica
		}
		warnReplica(ctx, r.log, r.grace)
	}
	return r.grace, nil
}

func warnReplica(ctx context.Context, log *slog.Logger, grace time.Duration) {
	log.WarnContext(ctx, "other servers write to this one's tables (it is a replica, or one of several that take writes): "+
		"a row whose transaction takes longer than this time, the replication's delay included, is lost", "time", grace)
}

// reread reads the gaps of a span again and hands out the rows that are visible now.
func (r *reader) reread(ctx context.Context, s position.Span) (n int, err error) {
	for {
		gaps, whole, err := r.gaps(ctx, s.Lo-1, min(s.Hi, r.wm.frontier))
		if err != nil || len(gaps) == 0 {
			return n, err
		}
		page, err := r.rows.within(ctx, gaps, r.limit)
		if err != nil {
			return n, fmt.Errorf("consumer: read gaps: %w", err)
		}
		if len(page.messages) > 0 {
			n += len(page.messages)
			r.wm.reread(idsOf(page.messages))
			if err := r.hand(ctx, batch{messages: page.messages}); err != nil {
				return n, err
			}
		}
		if whole && !page.full {
			return n, nil
		}
	}
}

// gaps returns the ranges of (after, upTo] to read again, at most maxRanges; whole means that these are all. If there are more gaps,
// it reads the visible ids first, and returns only ranges of ids that were not visible before.
func (r *reader) gaps(ctx context.Context, after, upTo uint64) (gaps []position.Span, whole bool, err error) {
	for gap := range r.wm.seen.Missing(max(after, r.wm.settled), upTo) {
		if gaps = append(gaps, gap); len(gaps) > maxRanges {
			break
		}
	}
	if len(gaps) <= maxRanges {
		return gaps, true, nil
	}
	var appeared position.Set
	for from := max(after, r.wm.settled); ; {
		ids, err := r.rows.ids(ctx, from, upTo, r.rows.where, idsAtOnce)
		if err != nil {
			return nil, false, fmt.Errorf("consumer: read ids: %w", err)
		}
		for _, id := range ids {
			if !r.wm.seen.Contains(id) {
				appeared.Add(id, id)
			}
			if len(appeared.Spans) == maxRanges {
				return appeared.Spans, false, nil
			}
		}
		if len(ids) < idsAtOnce {
			return appeared.Spans, true, nil
		}
		from = ids[len(ids)-1]
	}
}

// unlocked returns the largest id, at most upTo, up to which no missing row was found locked, so that its writer may have ended. It
// probes at most maxProbes missing ids, from the first, one by one, because for a range both servers also report locks of rows that were
// not asked for. A locked table counts as a locked row.
func (r *reader) unlocked(ctx context.Context, upTo uint64) (uint64, error) {
	mode := "FOR SHARE NOWAIT"
	if r.rows.session.Capabilities().MariaDB {
		mode = "LOCK IN SHARE MODE NOWAIT"
	}
	query := "SELECT 1 FROM " + ident.Quote(r.rows.table.Name) + " WHERE " + r.rows.key + " = ? " + mode
	probes := 0
	for after := max(r.wm.settled, r.wm.horizon); after < upTo; {
		seen, end, err := r.visible(ctx, after, upTo)
		if server.Retryable(err) {
			return after, nil
		}
		if err != nil {
			return 0, fmt.Errorf("consumer: read ids: %w", err)
		}
		for gap := range seen.Missing(after, end) {
			for id := gap.Lo; id <= gap.Hi; id++ {
				if probes++; probes > maxProbes {
					return upTo, nil
				}
				err := r.rows.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
					_, err := conn.ExecContext(ctx, query, id)
					return err
				})
				switch {
				case server.Is(err, server.ErrLockNoWait, server.ErrLockWaitTimeout):
					return id - 1, nil
				case unfit(err) != nil:
					return 0, fmt.Errorf("consumer: probe id %d: %w", id, err)
				}
			}
		}
		after = end
	}
	return upTo, nil
}

// visible returns the ids of (after, end] that were read, or exist and were not read or are excluded by the condition. end is upTo, or less
// if there are many.
func (r *reader) visible(ctx context.Context, after, upTo uint64) (seen position.Set, end uint64, err error) {
	if r.rows.where == "" && after < r.wm.frontier { // they were read
		return r.wm.seen, min(upTo, r.wm.frontier), nil
	}
	all, err := r.rows.ids(ctx, after, upTo, "", idsAtOnce)
	seen = r.wm.seen.Clone() // also ids whose rows were deleted since
	for _, id := range all {
		seen.Add(id, id)
	}
	if len(all) == idsAtOnce {
		upTo = all[len(all)-1]
	}
	return seen, upTo, err
}
