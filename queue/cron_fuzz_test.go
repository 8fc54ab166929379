package queue

import (
	"testing"
	"time"
)

// FuzzParseCron: an expression is an error or has times, never a panic.
func FuzzParseCron(f *testing.F) {
	for _, seed := range []string{"@daily", "*/5 * * * *", "@every 1s", "@every 1ns", "TZ=Europe/Berlin 0 3 * * *", "TZ=", "CRON_TZ=x", "TZ=0", "* * 31 2 *", "99999999999999999999 * * * *"} {
		f.Add(seed)
	}
	f.Fuzz(func(_ *testing.T, text string) {
		if times, err := parseCron(text); err == nil {
			times.Next(time.Unix(0, 0))
		}
	})
}
