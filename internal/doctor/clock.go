package doctor

import (
	"context"
	"time"
)

// apart is how far two clocks may differ before people notice.
const apart = time.Second

// clock compares the server's clock with this machine's. Of several looks the
// one with the shortest round trip tells most exactly.
func clock(ctx context.Context, e *exam) ([]Result, error) {
	const looks = 5
	var ahead, trip time.Duration
	for i := range looks {
		start := time.Now()
		var seconds float64 // exact to a microsecond for centuries
		if err := e.get(ctx, &seconds, "SELECT UNIX_TIMESTAMP(NOW(6))"); err != nil {
			return nil, err
		}
		took := time.Since(start)
		if i == 0 || took < trip {
			trip = took
			ahead = time.UnixMicro(int64(seconds * 1e6)).Sub(start.Add(took / 2))
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
			"the server's clock is %v %s this machine's: --from TIME goes by the server's, logs by this one", off.Round(time.Millisecond), direction)
	}
	return ok("the server's clock and this machine's differ by %v at most; a round trip takes %v; time zone tables are not needed",
		(off + trip/2).Round(round), trip.Round(round))
}
