package doctor

import (
	"context"
	"time"
)

// apart is the difference of two clocks above which the check warns.
const apart = time.Second

// clock compares the server's clock with this machine's. It uses the query with the shortest round trip of several, which is the most
// exact.
func clock(ctx context.Context, e *exam) ([]Result, error) {
	const queries = 5
	var ahead, trip time.Duration
	for i := range queries {
		start := time.Now()
		var micros int64 // not by NOW, which is ambiguous when the clocks are put back
		if err := e.get(ctx, &micros, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"); err != nil {
			return nil, err
		}
		took := time.Since(start)
		if i == 0 || took < trip {
			trip = took
			ahead = time.UnixMicro(micros).Sub(start.Add(took / 2))
		}
	}
	return []Result{judgeClock(ahead, trip)}, nil
}

func judgeClock(ahead, trip time.Duration) Result {
	off, direction := ahead, "ahead of"
	if ahead < 0 {
		off, direction = -ahead, "behind"
	}
	round := 10 * time.Microsecond
	if off-trip/2 > apart {
		return warning("synchronise the clocks (NTP)",
			"the server's clock is %v %s this machine's: --from TIME uses the server's clock, logs use this machine's", off.Round(time.Millisecond), direction)
	}
	return ok("the server's clock and this machine's differ by at most %v; a round trip takes %v; time zone tables are not needed",
		(off + trip/2).Round(round), trip.Round(round))
}
