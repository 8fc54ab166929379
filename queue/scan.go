package queue

import "time"

// scanEach is how often a busy worker's claim is a full scan: it begins with the queue's
// first task. In between it begins behind the last one that it has claimed. The index keeps
// an entry for each task that was claimed until the server purges it, and a full scan steps
// over all of them, which is most of what a claim costs while many are claimed.
const scanEach = 50 * time.Millisecond

// Full scans are slow while an old snapshot, of a backup perhaps, keeps the server from purging the index. Then they take a share
// of the time at most, and every claim begins behind the last one: a new task has a larger id, mostly.
const (
	// scanShare is how many times as long as a full scan took no other full scan begins.
	scanShare = 10
	// scanMost bounds what counts of a full scan, which may have waited for a lock.
	scanMost = 200 * time.Millisecond
)

// scanRest is the time from the end of a full scan to the next one, by the faster one of the last two.
func (l *store) scanRest() time.Duration {
	return max(scanEach, scanShare*min(l.took[0], l.took[1], scanMost))
}

func (l *store) scansAreSlow() bool { return l.scanRest() > scanEach }

// scanDue is when the next full scan may begin.
func (l *store) scanDue() time.Time { return l.scannedAt.Add(l.scanRest()) }

// scanIsDue reports whether a search that found too little behind a task may make a full scan.
func (l *store) scanIsDue() bool { return !l.scansAreSlow() || !time.Now().Before(l.scanDue()) }

// scanned records a claim that began then, with its cursor, or without one if it was a full scan.
func (l *store) scanned(passed Task, begun time.Time) {
	if passed.ID == 0 {
		l.scannedAt = time.Now()
		l.took = [2]time.Duration{l.took[1], l.scannedAt.Sub(begun)}
	}
}
