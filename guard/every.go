package guard

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// Every lets at most one caller through in an interval, or in a calendar period, however many ask: a lock that times out
// and is never released. Use it for a task that many machines schedule. It uses the table that `mqnotify init`
// creates. Safe for concurrent use.
//
// An interval begins when a caller gets through, by the server's clock; the caller's
// clock does not matter. All callers must give the same interval, or the same period and zone.
//
// With a Period a daily task runs once a day even on days when clocks change, which no interval of 23 or 24 hours
// achieves. The server's clock determines the time. If a host starts a task close to the end of a period and its clock
// differs from the server's, the task may count for the other period: start it at least some seconds away from that.
type Every struct {
	// Key names the task, in 1 to 255 characters.
	Key string
	// Interval is 1 ms or more; 0 if there is a Period.
	Interval time.Duration
	// Period is "hour", "day", "week" or "month"; empty if there is an Interval. A week begins on Monday. A day on which a
	// clock changes is one day, whether it has 23 or 25 hours.
	Period string
	// Zone is the time zone of the calendar; nil means UTC.
	Zone *time.Location
}

// check returns an error for invalid fields.
func (e Every) check() error {
	if err := checkName("key", e.Key); err != nil {
		return err
	}
	switch calendar(e.Period) {
	case "":
		if e.Zone != nil {
			return wrongf("a Zone without a Period: give one, or no Zone")
		}
		return checkTime("an interval", e.Interval, time.Millisecond)
	case hourly, daily, weekly, monthly:
		if e.Interval != 0 {
			return wrongf("a Period and an Interval: give one of them")
		}
		return nil
	}
	return wrongf("a period of %q: give %s, %s, %s or %s", e.Period, hourly, daily, weekly, monthly)
}

// Try reports whether the caller got through. It sends one statement for an interval and two for a period. After an error no caller
// may act, because the interval may be used up. It stays used up even if the caller's work fails. An invalid field is a
// notify.ErrOptions.
func (e Every) Try(ctx context.Context, db *notify.DB) (bool, error) {
	if err := e.check(); err != nil {
		return false, err
	}
	taker, length, query := newTaker(), microseconds(e.Interval), everyQuery
	args := []any{e.Key, taker, length, taker, length, taker, taker, length, taker}
	if e.Period != "" {
		now, err := e.now(ctx, db)
		if err != nil {
			return false, e.explain(err)
		}
		at, start := now.UnixMicro(), calendar(e.Period).start(now).UnixMicro()
		query, args = periodQuery, []any{e.Key, taker, at, start, taker, start, taker, taker, start, taker, at}
	}
	var through bool
	err := again(ctx, func() error {
		result, err := db.Pool().ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		times, err := result.LastInsertId()
		through = times > 0
		return err
	})
	return through && err == nil, e.explain(err)
}

// The insert id shows whether the caller gets through. The count of rows does not: that of an
// INSERT ... ON DUPLICATE KEY UPDATE that changes nothing is 0 or 1, depending on the
// connection (clientFoundRows). An attempt that is repeated because its answer was lost
// recognises its own row by the taker.
//
// The start of a period is computed before the statement. The statement uses the time of this computation, because its own time
// may be in the next period.
var (
	everyQuery = tryQuery("taken_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND", "UTC_TIMESTAMP(6)")

	instant     = "TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND"
	periodQuery = tryQuery("taken_at < "+instant, instant)
)

// tryQuery returns the statement of Try for a condition that the time is over and an expression for the current time.
func tryQuery(over, now string) string {
	open := over + " OR taker = ?"
	return "INSERT INTO " + schema.IntervalTable + " (interval_key, times, taker, taken_at)" +
		" VALUES (?, LAST_INSERT_ID(1), ?, " + now + ") ON DUPLICATE KEY UPDATE" +
		" times = IF(" + open + ", LAST_INSERT_ID(times + 1), times + LAST_INSERT_ID(0))," +
		" taker = IF(" + open + ", ?, taker)," +
		" taken_at = IF(" + open + ", " + now + ", taken_at)" // last, because the other assignments read its old value
}

// Due returns the time until a caller can get through again; 0 means now. An invalid field is a notify.ErrOptions.
func (e Every) Due(ctx context.Context, db *notify.DB) (time.Duration, error) {
	if err := e.check(); err != nil {
		return 0, err
	}
	if e.Period != "" {
		return e.duePeriod(ctx, db)
	}
	var left sql.NullInt64
	err := again(ctx, func() error {
		return db.Pool().GetContext(ctx, &left, "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), taken_at + INTERVAL ? MICROSECOND) FROM "+
			schema.IntervalTable+" WHERE interval_key = ?", microseconds(e.Interval), e.Key)
	})
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return max(0, time.Duration(left.Int64)*time.Microsecond), e.explain(err)
}

func (e Every) duePeriod(ctx context.Context, db *notify.DB) (time.Duration, error) {
	now, err := e.now(ctx, db)
	if err != nil {
		return 0, e.explain(err)
	}
	var taken int64
	err = again(ctx, func() error {
		return db.Pool().GetContext(ctx, &taken, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', taken_at) FROM "+
			schema.IntervalTable+" WHERE interval_key = ?", e.Key)
	})
	if errors.Is(err, sql.ErrNoRows) || (err == nil && taken < calendar(e.Period).start(now).UnixMicro()) {
		return 0, nil
	}
	return calendar(e.Period).next(now).Sub(now), e.explain(err)
}

func (e Every) explain(err error) error {
	return explain("every "+cmp.Or(e.Period, e.Interval.String())+", key", e.Key, err)
}
