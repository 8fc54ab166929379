package consumer

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/table"
)

// Position is where to begin in a topic. The zero value is End.
type Position struct {
	kind positionKind
	id   uint64
	time time.Time
	ago  time.Duration
	last int
}

type positionKind int

const (
	fromLast positionKind = iota
	fromID
	fromTime
	fromAgo
)

// Beginning is before the first row.
func Beginning() Position { return Position{kind: fromID, id: 1} }

// End is after the rows that are visible now. A row of a transaction that is
// open now comes when it commits, if its id is among the newest 10,000.
func End() Position { return Position{} }

// Last is End but for the newest n rows, which come first.
func Last(n int) Position { return Position{last: max(0, n)} }

// FromID is at the row of the id, whether it is there or not, but not past the
// table's end.
func FromID(id uint64) Position { return Position{kind: fromID, id: max(1, id)} }

// Since is at the first row of the time or later, by Options.TimeColumn, which is
// read in UTC. Ids and times are taken to go hand in hand up to 10 minutes. Of
// rows before the first that become visible later it holds what End does.
func Since(t time.Time) Position { return Position{kind: fromTime, time: t} }

// ParsePosition reads "beginning", "end", an id, or a time: in RFC 3339, as
// "2006-01-02" or "2006-01-02 15:04:05" in UTC, or as a duration ago ("90m"), by the
// server's clock when reading begins.
func ParsePosition(text string) (Position, error) {
	switch text {
	case "beginning":
		return Beginning(), nil
	case "end":
		return End(), nil
	}
	if id, err := strconv.ParseUint(text, 10, 64); err == nil {
		return FromID(id), nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, time.DateTime} {
		if t, err := time.Parse(layout, text); err == nil {
			return Since(t), nil
		}
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return Position{kind: fromAgo, ago: ago}, nil
	}
	return Position{}, fmt.Errorf("consumer: position %q: write beginning, end, an id, a time such as 2026-01-31T08:00:00Z, or a time ago such as 90m", text)
}

// endWindow is how many of the newest rows End tells from gaps.
const endWindow = 10_000

// disorder is how far apart rows next to each other may be in time the wrong way.
const disorder = 10 * time.Minute

// start finds the progress to begin with.
func (p Position) start(ctx context.Context, r *rows, timeColumn string) (progress, error) {
	switch p.kind {
	case fromID:
		start := progress{settled: p.id - 1}
		return start, checkHead(ctx, r, start.settled)
	case fromAgo:
		var now int64
		err := r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			return conn.GetContext(ctx, &now, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)")
		})
		if err != nil {
			return progress{}, fmt.Errorf("consumer: read the server's time: %w", err)
		}
		return Since(time.UnixMicro(now).Add(-p.ago)).start(ctx, r, timeColumn)
	case fromTime:
		before, err := p.search(ctx, r, timeColumn)
		if err != nil {
			return progress{}, err
		}
		return p.fromEnd(ctx, r, before)
	default:
		return p.fromEnd(ctx, r, math.MaxUint64)
	}
}

// fromEnd counts the newest rows up to an id, but the last ones, as done; what is
// missing among them may still come.
func (p Position) fromEnd(ctx context.Context, r *rows, upTo uint64) (start progress, err error) {
	var newest, last []uint64
	err = r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		from := "SELECT " + r.key + " FROM " + ident.Quote(r.table.Name) + " WHERE " + r.key + " > 0 AND " + r.key + " <= ?"
		order := " ORDER BY " + r.key + " DESC LIMIT ?"
		if err := conn.SelectContext(ctx, &newest, from+order, upTo, endWindow+p.last); err != nil || len(newest) == 0 {
			return err
		}
		// Later than the newest, or a row that comes in between would count as done.
		return conn.SelectContext(ctx, &last, from+r.where+order, newest[0], p.last)
	})
	if err != nil {
		return start, fmt.Errorf("consumer: find the end: %w", err)
	}
	if len(newest) == endWindow+p.last {
		start.settled = newest[len(newest)-1] - 1
	}
	if len(last) > 0 {
		start.settled = min(start.settled, last[len(last)-1]-1)
	}
	for _, id := range slices.Backward(newest) {
		if _, wanted := slices.BinarySearchFunc(last, id, func(a, b uint64) int { return cmp.Compare(b, a) }); !wanted {
			start.done.add(id, id)
		}
	}
	start.settle(start.settled)
	return start, nil
}

// search finds the id before the first row of the time or later, the largest number if
// there is none: by halving down to rows that are older by the disorder, then by looking
// at each from there on.
func (p Position) search(ctx context.Context, r *rows, timeColumn string) (uint64, error) {
	column, err := r.table.Column(timeColumn)
	if err != nil {
		return 0, err
	}
	if column.DataType != "timestamp" && column.DataType != "datetime" {
		return 0, fmt.Errorf("consumer: column %s of %s is no TIMESTAMP or DATETIME: begin at an id instead: %w",
			ident.Quote(column.Name), r.table, table.ErrNoColumn)
	}
	name, of := ident.Quote(column.Name), " FROM "+ident.Quote(r.table.Name)
	early := p.time.Add(-disorder).UTC().Format("2006-01-02 15:04:05.000000")
	low, high, first := uint64(0), uint64(0), uint64(0)
	if high, _, err = largest(ctx, r); err != nil {
		return 0, err
	}
	err = r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		for low < high { // the first row past low and up to high is early enough, or not
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
			low, p.time.UTC().Format("2006-01-02 15:04:05.000000"))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("consumer: search %s: %w", p.time.Format(time.RFC3339), err)
	}
	return first - 1, nil
}
