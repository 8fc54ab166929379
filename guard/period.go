package guard

import (
	"cmp"
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

// start returns the first instant of the period that contains t.
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

// next returns the first instant of the period after the one that contains t.
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
	if start.Hour() > 12 { // there is no 0:00: start is 23:00 of the day before, and the clocks change to 1:00 then
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
func (e Every) now(ctx context.Context, db *notify.DB) (time.Time, error) {
	var micros int64
	err := again(ctx, func() error {
		return db.Pool().GetContext(ctx, &micros, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
	})
	return time.UnixMicro(micros).In(cmp.Or(e.Zone, time.UTC)), err
}
