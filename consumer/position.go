package consumer

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/table"
)

// beginning is Options.From, parsed.
type beginning struct{ position.From }

// endWindow is how many of the newest rows a reader that begins at the end reads, to find the gaps among them.
const endWindow = 10_000

// fromPastEnd is the reason of checkHead for From.
const fromPastEnd = "From (--from) begins after %d: name an earlier id"

// disorder is how much later a row's time may be than that of the next row.
const disorder = 10 * time.Minute

// start returns the progress to begin with.
func (p beginning) start(ctx context.Context, r *rows, timeColumn string) (position.Progress, error) {
	switch p.Kind {
	case position.ID:
		start := position.Progress{Settled: p.ID - 1}
		return start, checkHead(ctx, r, start.Settled, fromPastEnd)
	case position.After:
		return p.Progress.Clone(), checkHead(ctx, r, p.Progress.Settled, fromPastEnd)
	case position.Ago:
		var now int64
		err := r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			return conn.GetContext(ctx, &now, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)")
		})
		if err != nil {
			return position.Progress{}, fmt.Errorf("consumer: read the server's time: %w", err)
		}
		return beginning{position.From{Kind: position.Time, Time: time.UnixMicro(now).Add(-p.Ago)}}.start(ctx, r, timeColumn)
	case position.Time:
		before, err := p.search(ctx, r, timeColumn)
		if err != nil {
			return position.Progress{}, err
		}
		return p.fromEnd(ctx, r, before)
	default:
		return p.fromEnd(ctx, r, math.MaxUint64)
	}
}

// fromEnd counts the newest rows up to an id as done, except the last p.Last ones. Missing ids among them stay gaps.
func (p beginning) fromEnd(ctx context.Context, r *rows, upTo uint64) (start position.Progress, err error) {
	var newest, last []uint64
	err = r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		from := "SELECT " + r.key + " FROM " + ident.Quote(r.table.Name) + " WHERE " + r.key + " > 0 AND " + r.key + " <= ?"
		order := " ORDER BY " + r.key + " DESC LIMIT ?"
		if err := conn.SelectContext(ctx, &newest, from+order, upTo, endWindow+p.Last); err != nil || len(newest) == 0 {
			return err
		}
		// Read this after newest, or a row that is inserted in between would count as done.
		return conn.SelectContext(ctx, &last, from+r.where+order, newest[0], p.Last)
	})
	if err != nil {
		return start, fmt.Errorf("consumer: find the end: %w", err)
	}
	if len(newest) == endWindow+p.Last {
		start.Settled = newest[len(newest)-1] - 1
	}
	if len(last) > 0 {
		start.Settled = min(start.Settled, last[len(last)-1]-1)
	}
	for _, id := range slices.Backward(newest) {
		if _, wanted := slices.BinarySearchFunc(last, id, func(a, b uint64) int { return cmp.Compare(b, a) }); !wanted {
			start.Done.Add(id, id)
		}
	}
	start.Settle(start.Settled)
	return start, nil
}

// search returns the id before the first row of the time or later, or the largest number if there is no such row. It finds by bisection
// a row that is older by the disorder, and reads row by row from there.
func (p beginning) search(ctx context.Context, r *rows, timeColumn string) (uint64, error) {
	column, err := r.table.Column(timeColumn)
	if err != nil {
		return 0, err
	}
	if column.DataType != "timestamp" && column.DataType != "datetime" {
		return 0, fmt.Errorf("consumer: column %s of %s is not a TIMESTAMP or DATETIME: begin at an id instead: %w",
			ident.Quote(column.Name), r.table, table.ErrNoColumn)
	}
	name, of := ident.Quote(column.Name), " FROM "+ident.Quote(r.table.Name)
	early := p.Time.Add(-disorder).UTC().Format("2006-01-02 15:04:05.000000")
	low, high, first := uint64(0), uint64(0), uint64(0)
	if high, _, err = largest(ctx, r); err != nil {
		return 0, err
	}
	err = r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		for low < high { // decide whether the first row between middle and high is old enough
			middle := low + (high-low)/2
			var row struct {
				ID    uint64
				Early sql.NullBool
			}
			err := conn.GetContext(ctx, &row, "SELECT "+r.key+" AS id, "+name+" < ? AS early"+of+
				" WHERE "+r.key+" > ? ORDER BY "+r.key+" LIMIT 1", early, middle)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				return err
			}
			if err == nil && row.Early.Bool {
				low = row.ID
			} else {
				high = middle
			}
		}
		err := conn.GetContext(ctx, &first, "SELECT "+r.key+of+" WHERE "+r.key+" > ? AND "+name+" >= ? ORDER BY "+r.key+" LIMIT 1",
			low, p.Time.UTC().Format("2006-01-02 15:04:05.000000"))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("consumer: search %s: %w", p.Time.Format(time.RFC3339), err)
	}
	return first - 1, nil
}
