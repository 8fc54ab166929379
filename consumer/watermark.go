package consumer

import (
	"maps"
	"slices"
	"time"
)

const (
	// maxSpans bounds the memory for ids that were delivered while lower ones may
	// still come, to 16 MiB: past it the reader waits for the gaps to close.
	maxSpans = 1 << 20
	// maxNotes bounds how many heads are waited for apart.
	maxNotes = 64
)

// watermark knows which ids were read, and up to which id nothing unread can
// appear any more: the settled watermark of the package comment, without its
// statements.
type watermark struct {
	settled  uint64 // every id up to it was read, or never appears
	seen     idSet  // the ids above settled that were read
	frontier uint64 // pages were read up to this id
	horizon  uint64 // every id that appears from now on is larger; may be ahead of the frontier
	notes    []note // heads above settled whose writers are waited for, in order
}

// writer is a transaction that may fill a gap, as its source names it.
type writer uint64

// open are the transactions that are open; true for those that may be writers of
// the table.
type open map[writer]bool

// note is a head and the writers that were open after it was read. Whoever will
// fill a gap below the head is one of them: he took the id before the head
// appeared, and his lock on the table before that.
type note struct {
	head    uint64
	writers map[writer]struct{}
	since   time.Time
}

// newWatermark goes on from a stored offset.
func newWatermark(settled uint64, seen idSet) *watermark {
	w := &watermark{settled: settled, seen: seen}
	w.settle(settled)
	w.frontier = max(w.settled, w.seen.max())
	return w
}

// page takes the ids of a page that was read from the frontier on.
func (w *watermark) page(ids []uint64) {
	for _, id := range ids {
		if id > w.horizon {
			w.seen.add(id, id)
		}
		w.frontier = id
	}
	// The frontier is behind the horizon only when there is no gap below it.
	w.settle(min(w.frontier, w.horizon))
}

// pass says that there was no further row up to id.
func (w *watermark) pass(id uint64) {
	w.frontier = max(w.frontier, id)
	w.settle(min(w.frontier, w.horizon))
}

// certain is how many of a page's ids, in order, nothing lower can follow.
func (w *watermark) certain(ids []uint64) int {
	next := w.settled
	for i, id := range ids {
		if w.settled < w.frontier || id > w.horizon && id-next != 1 {
			return i
		}
		next = id
	}
	return len(ids)
}

// reread takes ids from below the frontier that a second reading brought to light.
func (w *watermark) reread(ids []uint64) {
	for _, id := range ids {
		w.seen.add(id, id)
	}
	w.settle(w.settled)
}

// settle moves the watermark to id, and on past what was read right after it.
func (w *watermark) settle(id uint64) {
	w.settled = w.seen.trim(max(id, w.settled))
	w.frontier = max(w.frontier, w.settled)
	w.notes = slices.DeleteFunc(w.notes, func(n note) bool { return n.head <= w.settled })
}

// waiting tells whether there are gaps below the frontier, or heads whose writers
// have not ended.
func (w *watermark) waiting() bool { return w.settled < w.frontier || len(w.notes) > 0 }

// full tells whether no more ids can be remembered above the gaps.
func (w *watermark) full() bool { return len(w.seen.spans) >= maxSpans }

// note says who was open after the head was read.
func (w *watermark) note(head uint64, open open, now time.Time) {
	last := len(w.notes) - 1
	if head <= w.settled || last >= 0 && head <= w.notes[last].head {
		return // nothing is missing, or an older note waits for fewer
	}
	writers := make(map[writer]struct{})
	for writer, may := range open {
		if may {
			writers[writer] = struct{}{}
		}
	}
	if last >= 0 && len(writers) > 0 && maps.Equal(w.notes[last].writers, writers) {
		w.notes[last].head = head
		return
	}
	if len(w.notes) < maxNotes { // else a later note, when the first has ended, covers this head too
		w.notes = append(w.notes, note{head, writers, now})
	}
}

// check tells what follows from who is open now: which ranges (lo and hi
// included) have gaps to be read again, since a writer who might have filled them
// ended, and the head up to which all have ended, for at least grace; 0 when
// there is none. The caller reads the ranges, then settles the head.
//
// The heads that have ended are the first ones: who was open at a head and still
// is was open at the next head too.
func (w *watermark) check(open open, now time.Time, grace time.Duration) (again []span, ended uint64) {
	after := w.settled
	for _, n := range w.notes {
		before := len(n.writers)
		maps.DeleteFunc(n.writers, func(writer writer, _ struct{}) bool {
			_, still := open[writer]
			return !still
		})
		done := len(n.writers) == 0 && now.Sub(n.since) >= grace
		if done {
			ended = n.head
		}
		if done || len(n.writers) < before || grace > 0 {
			if last := len(again) - 1; last >= 0 && again[last].hi == after {
				again[last].hi = n.head
			} else {
				again = append(again, span{after + 1, n.head})
			}
		}
		after = n.head
	}
	return again, ended
}

// end says that every writer up to the head has ended, and that the gaps below it
// were read again after that.
func (w *watermark) end(head uint64) {
	w.horizon = max(w.horizon, head)
	w.settle(min(head, w.frontier))
}
