package guard

import (
	"context"
	"time"

	"github.com/mqnotify/mqnotify/notify"
)

// calendar is a kind of calendar period.
type calendar string

const (
	hourly  calendar = "hour"
	daily   calendar = "day"
	weekly  calendar = "week"
	monthly calendar = "month"
)

// NewEveryPeriod returns an [Every] that lets one caller through in each calendar period, at most: a daily task runs once a day also on the
// days on which clocks are changed, which no interval of 23 or 24 hours achieves. The key has 1 to 255 characters and is on the ready table,
// which `mqnotify init` makes.
//
// period is "hour", "day", "week" or "month". A week begins on Monday. A day on which a clock is changed is one day, whether it
// has 23 or 25 hours.
//
// zone is the time zone of the calendar; nil is UTC. All callers give the same period and zone. The server's clock says what the time is. A
// task that is started close to the end of a period, by a host whose clock differs, may count for the other one: start it at least some seconds away from
// that. An unknown period is an error of [notify.ErrOptions].
func NewEveryPeriod(db *notify.DB, key string, period string, zone *time.Location) (*Every, error) {
	if err := checkName("key", key); err != nil {
		return nil, err
	}
	switch calendar(period) {
	case hourly, daily, weekly, monthly:
	default:
		return nil, wrongf("a period of %q: give %s, %s, %s or %s", period, hourly, daily, weekly, monthly)
	}
	if zone == nil {
		zone = time.UTC
	}
	return &Every{db: db, key: key, period: calendar(period), zone: zone}, nil
}

// start returns the first instant of the period in which t is.
func (p calendar) start(t time.Time) time.Time {
	year, month, day := t.Date()
	switch p {
	case hourly:
		return t.Add(-time.Duration(t.Minute())*time.Minute - time.Duration(t.Second())*time.Second - time.Duration(t.Nanosecond()))
	case weekly:
		day -= (int(t.Weekday()) + 6) % 7
	case monthly:
		day = 1
	}
	return midnight(year, month, day, t.Location())
}

// next returns the first instant of the period after the one in which t is.
func (p calendar) next(t time.Time) time.Time {
	if p == hourly {
		return p.start(t).Add(time.Hour)
	}
	year, month, day := p.start(t).Date()
	switch p {
	case daily:
		day++
	case weekly:
		day += 7
	case monthly:
		month++
	}
	return midnight(year, month, day, t.Location())
}

// midnight returns the first instant of a day, which is not 0:00 in zones that change their clocks at midnight.
func midnight(year int, month time.Month, day int, zone *time.Location) time.Time {
	start := time.Date(year, month, day, 0, 0, 0, 0, zone)
	begin, end := start.ZoneBounds()
	if start.Hour() > 12 { // there is no 0:00: this is 23:00 of the day before, and the clocks are changed to 1:00
		return end
	}
	if begin.IsZero() {
		return start
	}
	// If the clocks were put back from 1:00 to 0:00, there are two 0:00, and start may be the second.
	_, before := begin.Add(-1).Zone()
	_, after := start.Zone()
	if first := start.Add(time.Duration(after-before) * time.Second); first.Before(begin) && first.Day() == start.Day() && start.Hour() == 0 {
		return first
	}
	return start
}

// now returns the time on the server's clock, in the zone.
func (e *Every) now(ctx context.Context) (time.Time, error) {
	var micros int64
	err := again(ctx, func() error {
		return e.db.Pool().GetContext(ctx, &micros, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
	})
	return time.UnixMicro(micros).In(e.zone), err
}
