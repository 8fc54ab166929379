package guard

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// Every lets at most one caller through in an interval, however many ask: the timeout
// lock, which is never released. Use it for a task that many machines schedule.
// Safe for concurrent use.
//
// The interval begins when a caller gets through, by the server's clock; the caller's
// clock does not matter. All callers should give the same interval, or each is held
// to its own. NewEveryPeriod makes one for calendar periods.
type Every struct {
	db       *notify.DB
	key      string
	interval time.Duration
	period   calendar // instead of an interval
	zone     *time.Location
}

// NewEvery is Every for a key of 1 to 255 characters, on the ready table, which
// `mqnotify init` makes. The interval is 1 ms or more.
func NewEvery(db *notify.DB, key string, interval time.Duration) (*Every, error) {
	if err := checkName("key", key); err != nil {
		return nil, err
	}
	if err := checkTime("an interval", interval, time.Millisecond); err != nil {
		return nil, err
	}
	return &Every{db: db, key: key, interval: interval}, nil
}

// Try reports whether the caller got through, in one statement. After an error no caller
// may act, because the interval may be used up.
func (e *Every) Try(ctx context.Context) (bool, error) {
	taker, length, query := newTaker(), microseconds(e.interval), everyQuery
	args := []any{e.key, taker, length, taker, length, taker, taker, length, taker}
	if e.period != "" {
		now, err := e.now(ctx)
		if err != nil {
			return false, e.explain(err)
		}
		at, start := now.UnixMicro(), e.period.start(now).UnixMicro()
		query, args = periodQuery, []any{e.key, taker, at, start, taker, start, taker, taker, start, taker, at}
	}
	var through bool
	err := again(ctx, func() error {
		result, err := e.db.Pool().ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		times, err := result.LastInsertId()
		through = times > 0
		return err
	})
	return through && err == nil, e.explain(err)
}

// The insert id shows whether the caller gets through, not the count of rows: that of an
// INSERT ... ON DUPLICATE KEY UPDATE that changes nothing is 0 or 1, depending on the
// connection (clientFoundRows). An attempt that is run again, because its answer was lost,
// recognises itself by the taker.
//
// A period is known before the statement: it counts for the time at which its start was computed, not for the time of the statement, which may
// be in the next period.
var (
	everyQuery = tryQuery("taken_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND", "UTC_TIMESTAMP(6)")

	instant     = "TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND"
	periodQuery = tryQuery("taken_at < "+instant, instant)
)

// tryQuery is the statement of Try: with when the time is over, and the time that counts as now.
func tryQuery(over, now string) string {
	open := over + " OR taker = ?"
	return "INSERT INTO " + schema.IntervalTable + " (interval_key, times, taker, taken_at)" +
		" VALUES (?, LAST_INSERT_ID(1), ?, " + now + ") ON DUPLICATE KEY UPDATE" +
		" times = IF(" + open + ", LAST_INSERT_ID(times + 1), times + LAST_INSERT_ID(0))," +
		" taker = IF(" + open + ", ?, taker)," +
		" taken_at = IF(" + open + ", " + now + ", taken_at)" // the last, as the others ask for it
}

// Do runs f if the caller got through, and reports whether it did. The interval is used
// up even if f fails.
func (e *Every) Do(ctx context.Context, f func(ctx context.Context) error) (ran bool, err error) {
	through, err := e.Try(ctx)
	if err != nil || !through {
		return false, err
	}
	return true, f(ctx)
}

// Due returns the time until a caller can get through again; 0 is now.
func (e *Every) Due(ctx context.Context) (time.Duration, error) {
	if e.period != "" {
		return e.duePeriod(ctx)
	}
	var left sql.NullInt64
	err := again(ctx, func() error {
		return e.db.Pool().GetContext(ctx, &left, "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), taken_at + INTERVAL ? MICROSECOND) FROM "+
			schema.IntervalTable+" WHERE interval_key = ?", microseconds(e.interval), e.key)
	})
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return max(0, time.Duration(left.Int64)*time.Microsecond), e.explain(err)
}

func (e *Every) duePeriod(ctx context.Context) (time.Duration, error) {
	now, err := e.now(ctx)
	if err != nil {
		return 0, e.explain(err)
	}
	var taken int64
	err = again(ctx, func() error {
		return e.db.Pool().GetContext(ctx, &taken, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', taken_at) FROM "+
			schema.IntervalTable+" WHERE interval_key = ?", e.key)
	})
	if errors.Is(err, sql.ErrNoRows) || (err == nil && taken < e.period.start(now).UnixMicro()) {
		return 0, nil
	}
	return e.period.next(now).Sub(now), e.explain(err)
}

func (e *Every) explain(err error) error {
	time := string(e.period)
	if time == "" {
		time = e.interval.String()
	}
	return explain("every "+time+", key", e.key, err)
}
