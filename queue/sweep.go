package queue

import "time"

// sweepEach is how often a busy worker's claim is a sweep: it begins with the queue's
// first task. In between it begins behind the last one that it has claimed. The index keeps
// an entry for each task that was claimed until the server purges it, and a sweep steps
// over all of them, which is most of what a claim costs while many are claimed.
const sweepEach = 50 * time.Millisecond

// Sweeps are slow while an old snapshot, of a backup perhaps, keeps the server from purging the index. Then they take a share
// of the time at most, and every claim begins behind the last one: a new task has a larger id, mostly.
const (
	// sweepShare is how many times as long as a sweep took no other sweep begins.
	sweepShare = 10
	// sweepMost bounds what counts of a sweep, which may have waited for a lock.
	sweepMost = 200 * time.Millisecond
)

// sweepRest is the time from the end of a sweep to the next one, by the faster one of the last two.
func (l *line) sweepRest() time.Duration {
	return max(sweepEach, sweepShare*min(l.took[0], l.took[1], sweepMost))
}

func (l *line) sweepsAreSlow() bool { return l.sweepRest() > sweepEach }

// sweepDue is when the next sweep may begin.
func (l *line) sweepDue() time.Time { return l.swept.Add(l.sweepRest()) }

// sweepIsDue reports whether a search that found too little behind a task may sweep.
func (l *line) sweepIsDue() bool { return !l.sweepsAreSlow() || !time.Now().Before(l.sweepDue()) }

// sweeps notes a claim behind a task, or behind none, which began then.
func (l *line) sweeps(passed Task, begun time.Time) {
	if passed.ID == 0 {
		l.swept = time.Now()
		l.took = [2]time.Duration{l.took[1], l.swept.Sub(begun)}
	}
}
