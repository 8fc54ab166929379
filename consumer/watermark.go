package consumer

import (
	"time"

	"github.com/mqnotify/mqnotify/internal/position"
)

const (
	// maxSpans bounds the memory for ids that were delivered while lower ones may
	// still appear, to 16 MiB and a page. At this limit the reader reads no further page until gaps
	// close.
	maxSpans = 1 << 20
	// graceParts is how many heads are recorded within a grace period.
	graceParts = 64
)

// watermark tracks which ids were read and up to which id no further row can appear: the settled watermark of the package comment. It
// makes no statements, so tests compare it with a model.
type watermark struct {
	settled  uint64       // no unread row with an id <= settled can appear any more
	seen     position.Set // the ids above settled that were read
	frontier uint64       // pages were read up to this id
	horizon  uint64       // every row that appears from now on has a larger id; may be ahead of the frontier
	polled   uint64       // the head at the last poll: a writer that starts after it gets larger ids
	// late means that a writer may take its first id shortly before a poll can show the writer,
	// but after the previous poll. Then earlier, the head at the poll before the last one, replaces polled.
	late    bool
	earlier uint64

	// writers maps each writer that was open at the last poll to a lower bound of its ids: the head at the poll before
	// the one that first reported it. A writer that will fill a gap below a head took the id, and before that its lock on
	// the table, before the head appeared, so a poll after the head reports it.
	writers map[writer]uint64
	heads   []head // in order of time, if gaps have a grace period
}

// writer is a transaction that may fill a gap, under a name that its source gives it.
type writer uint64

// open are the open transactions; the value is true if the transaction may write to the table.
type open map[writer]bool

// head is the head at a time.
type head struct {
	id   uint64
	seen time.Time
}

// newWatermark continues from a stored offset.
func newWatermark(settled uint64, seen position.Set) *watermark {
	w := &watermark{settled: settled, seen: seen, writers: make(map[writer]uint64)}
	w.settle(settled)
	w.frontier, w.polled, w.earlier = max(w.settled, w.seen.Max()), w.settled, w.settled
	return w
}

// page records the ids of a page that was read from the frontier on.
func (w *watermark) page(ids []uint64) {
	for _, id := range ids {
		if id > w.horizon {
			w.seen.Add(id, id)
		}
		w.frontier = id
	}
	// The frontier is below the horizon only if there is no gap below the frontier.
	w.settle(min(w.frontier, w.horizon))
}

// pass records that a read found no further row up to id.
func (w *watermark) pass(id uint64) {
	w.frontier = max(w.frontier, id)
	w.settle(min(w.frontier, w.horizon))
}

// certain returns how many of a page's ids, from the first, can't be followed by a lower id.
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

// reread records ids below the frontier that a second read found.
func (w *watermark) reread(ids []uint64) {
	for _, id := range ids {
		w.seen.Add(id, id)
	}
	w.settle(w.settled)
}

// settle moves the watermark to id, and further over the ids that were read directly after it.
func (w *watermark) settle(id uint64) {
	w.settled = w.seen.Trim(max(id, w.settled))
	w.frontier = max(w.frontier, w.settled)
	w.polled, w.earlier = max(w.polled, w.settled), max(w.earlier, w.settled)
}

// waiting reports whether there are gaps below the frontier, or a head whose writers have not all ended.
func (w *watermark) waiting() bool { return w.settled < max(w.frontier, w.polled) }

// observe records a poll: the head, and the writers that were open after it was read.
//
// It returns the range of ids, Lo and Hi included, whose gaps the caller must read again, because a writer that may have filled them
// has ended since the last poll. It also returns the id up to which no row can appear after that read: every writer that may have a
// smaller id has ended, and the grace period has passed since this id was the head. The caller reads the range first and calls end
// with the id afterwards; the other order would lose a row that was committed in between.
func (w *watermark) observe(id uint64, open open, now time.Time, grace time.Duration) (again position.Span, ended uint64) {
	id = max(id, w.polled)
	ended = id
	since := w.polled
	if w.late {
		since, ended = w.earlier, w.polled
	}
	after := since // writers that began and ended since the last poll have larger ids
	for name, low := range w.writers {
		if _, still := open[name]; still {
			ended = min(ended, low)
		} else {
			after = min(after, low)
			delete(w.writers, name)
		}
	}
	for name, may := range open {
		if _, known := w.writers[name]; may && !known {
			w.writers[name] = since
			ended = min(ended, since)
		}
	}
	if grace > 0 {
		after = w.settled // a writer that fills a gap may be invisible
		ended = min(ended, w.graced(id, now, grace))
	}
	w.earlier, w.polled = w.polled, id
	return position.Span{Lo: max(after, w.settled) + 1, Hi: id}, ended
}

// graced returns the largest head that is older than grace. It records heads at a distance of grace/graceParts.
func (w *watermark) graced(id uint64, now time.Time, grace time.Duration) uint64 {
	if last := len(w.heads) - 1; last < 0 || w.heads[last].id < id && now.Sub(w.heads[last].seen) >= grace/graceParts {
		w.heads = append(w.heads, head{id, now})
	}
	for len(w.heads) > 1 && now.Sub(w.heads[1].seen) >= grace {
		w.heads = w.heads[1:]
	}
	if now.Sub(w.heads[0].seen) < grace {
		return w.settled
	}
	return w.heads[0].id
}

// awaited returns the first id that may still appear, and the longest time that the reader waits for it; 0 means until the open
// transactions end.
func (w *watermark) awaited(now time.Time, grace time.Duration) (id uint64, most time.Duration) {
	id = w.settled + 1
	if grace == 0 || len(w.writers) > 0 {
		return id, 0
	}
	for _, h := range w.heads {
		if h.id >= id {
			return id, max(0, grace-now.Sub(h.seen))
		}
	}
	return id, grace
}

// end records that no row with an id up to id can appear any more, and that the gaps below it were read after that was certain.
func (w *watermark) end(id uint64) {
	w.horizon = max(w.horizon, id)
	w.settle(min(id, w.frontier))
}
