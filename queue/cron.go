package queue

import (
	"time"

	"github.com/robfig/cron/v3"
)

// nextDue returns the first time after a time at which a schedule is due, or zero if there is none within five years. The library's own
// Next misses days that begin at 01:00, as in Cairo and Santiago when clocks go forward: it steps over them to the next day. Here it is
// asked only for the times of one day.
func nextDue(schedule cron.Schedule, after time.Time) time.Time {
	spec, is := schedule.(*cron.SpecSchedule)
	if !is {
		return schedule.Next(after)
	}
	zone := spec.Location
	if zone == time.Local { // the schedule names none
		zone = after.Location()
	}
	daily := *spec
	daily.Month, daily.Dom, daily.Dow = every, every, every
	year, month, day := after.In(zone).Date()
	for n := range 5 * 366 {
		noon := time.Date(year, month, day+n, 12, 0, 0, 0, zone)
		if !isOn(spec, noon) {
			continue
		}
		from := after
		if n > 0 {
			from = beginOf(noon).Add(-time.Second)
		}
		if at := daily.Next(from); at.In(zone).YearDay() == noon.YearDay() {
			return at
		}
	}
	return time.Time{}
}

// every has all bits of a field of a schedule, and the bit with which the library marks a star.
const (
	every = ^uint64(0)
	star  = uint64(1) << 63
)

// isOn reports whether a schedule is due on a day. Like cron, it takes a day of the month or of the week if both are given.
func isOn(spec *cron.SpecSchedule, day time.Time) bool {
	ofMonth, ofWeek := spec.Dom&(1<<day.Day()) != 0, spec.Dow&(1<<day.Weekday()) != 0
	if spec.Dom&star != 0 || spec.Dow&star != 0 {
		return spec.Month&(1<<day.Month()) != 0 && ofMonth && ofWeek
	}
	return spec.Month&(1<<day.Month()) != 0 && (ofMonth || ofWeek)
}

// beginOf returns when a day begins, which is not midnight where the clock skips that.
func beginOf(noon time.Time) time.Time {
	at := noon
	for at.Add(-30*time.Minute).Day() == noon.Day() {
		at = at.Add(-30 * time.Minute)
	}
	return at
}
