package guard

import (
	"testing"
	"time"
	_ "time/tzdata" // the zones, where the host has none

	"github.com/stretchr/testify/require"
)

// A period begins with its first instant, also in zones whose clocks change at night or at midnight, forward and back.
func TestPeriodStart(t *testing.T) {
	for _, c := range []struct {
		period            calendar
		zone, at          string // RFC 3339
		start, next       string
		hoursOfThisPeriod float64
	}{
		{daily, "Europe/Berlin", "2026-03-29T01:30:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", 23},
		{daily, "Europe/Berlin", "2026-10-25T01:30:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", 25},
		{hourly, "Europe/Berlin", "2026-10-25T01:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z", 1}, // 2:30 for the second time
		{weekly, "Europe/Berlin", "2026-03-29T10:00:00Z", "2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z", 167},
		{monthly, "Europe/Berlin", "2026-03-29T10:00:00Z", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z", 743},
		{monthly, "UTC", "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z", 744},
		{daily, "America/Sao_Paulo", "2017-10-15T12:00:00Z", "2017-10-15T03:00:00Z", "2017-10-16T02:00:00Z", 23}, // no 0:00
		{daily, "Asia/Amman", "2021-10-28T21:30:00Z", "2021-10-28T21:00:00Z", "2021-10-29T22:00:00Z", 25},        // the first 0:30
		{daily, "Asia/Amman", "2021-10-28T22:30:00Z", "2021-10-28T21:00:00Z", "2021-10-29T22:00:00Z", 25},        // the second
		{daily, "America/Havana", "2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", 25},
		{hourly, "Asia/Kolkata", "2026-01-01T00:10:00Z", "2025-12-31T23:30:00Z", "2026-01-01T00:30:00Z", 1},
	} {
		zone, err := time.LoadLocation(c.zone)
		require.NoError(t, err)
		at, err := time.Parse(time.RFC3339, c.at)
		require.NoError(t, err)
		start, next := c.period.start(at.In(zone)), c.period.next(at.In(zone))
		require.Equal(t, c.start, start.UTC().Format(time.RFC3339), "%v", c)
		require.Equal(t, c.next, next.UTC().Format(time.RFC3339), "%v", c)
		require.InDelta(t, c.hoursOfThisPeriod, next.Sub(start).Hours(), 0, "%v", c)
	}
}

// Periods follow one another without a gap: every half hour of a year is in a period that begins before it and ends where the next
// begins.
func TestPeriodsFollow(t *testing.T) {
	for _, name := range []string{"Europe/Berlin", "America/Sao_Paulo", "Asia/Amman", "America/Havana", "Asia/Beirut", "Atlantic/Azores", "America/St_Johns"} {
		zone, err := time.LoadLocation(name)
		require.NoError(t, err)
		for _, period := range []calendar{hourly, daily, weekly, monthly} {
			last := time.Time{}
			for at := time.Date(2018, 1, 1, 12, 0, 0, 0, zone); at.Year() < 2019; at = at.Add(30 * time.Minute) {
				start, next := period.start(at), period.next(at)
				require.False(t, start.After(at), "%s %s %v", name, period, at)
				require.True(t, next.After(at), "%s %s %v", name, period, at)
				require.False(t, start.Before(last), "%s %s %v", name, period, at)
				last = start
			}
		}
	}
}
