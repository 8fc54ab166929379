package queue

import "time"

// scanEach is how often a busy worker's claim is a full scan, which begins with the queue's
// first task. In between, claims begin behind the last task that was claimed. The index keeps
// an entry of every claimed task until the server purges it. A full scan reads
// all of them, which is most of a claim's cost while many tasks are claimed.
const scanEach = 50 * time.Millisecond

// Full scans are slow while an old snapshot, for example of a backup, keeps the server from purging the index. Then they take only a
// share of the time, and all other claims begin behind the last one: a new task usually has a larger id.
const (
	// scanShare is the time without a full scan, as a multiple of the time of the last one.
	scanShare = 10
	// scanMost bounds the counted time of a full scan, which may have waited for a lock.
	scanMost = 200 * time.Millisecond
)

// scanRest returns the time from the end of a full scan to the next one, by the faster one of the last two.
func (l *store) scanRest() time.Duration {
	return max(scanEach, scanShare*min(l.took[0], l.took[1], scanMost))
}

func (l *store) scansAreSlow() bool { return l.scanRest() > scanEach }

// scanDue returns when the next full scan may begin.
func (l *store) scanDue() time.Time { return l.scannedAt.Add(l.scanRest()) }

// scanIsDue reports whether a search that found too few tasks behind the cursor may make a full scan.
func (l *store) scanIsDue() bool { return !l.scansAreSlow() || !time.Now().Before(l.scanDue()) }

// scanned records the search of a claim that began at begun. passed is its cursor, or empty for a full scan.
func (l *store) scanned(passed Task, begun time.Time) {
	if passed.ID == 0 {
		l.scannedAt = time.Now()
		l.took = [2]time.Duration{l.took[1], l.scannedAt.Sub(begun)}
	}
}
