package consumer

import (
	"time"

	"github.com/mqnotify/mqnotify/internal/position"
)

const (
	// maxSpans bounds the memory for ids that were delivered while lower ones may
	// still come, to 16 MiB and a page: past it no further page is read until gaps
	// close.
	maxSpans = 1 << 20
	// graceParts is how many heads are noted within a grace period.
	graceParts = 64
)

// watermark knows which ids were read, and up to which id nothing unread can
// appear any more: the settled watermark of the package comment, without its
// statements.
type watermark struct {
	settled  uint64       // every id up to it was read, or never appears
	seen     position.Set // the ids above settled that were read
	frontier uint64       // pages were read up to this id
	horizon  uint64       // every id that appears from now on is larger; may be ahead of the frontier
	polled   uint64       // the head at the last poll: a writer that began since then has larger ids only
	// late says that a writer may take its first id shortly before a poll can show the writer,
	// but after the poll before that one. Then earlier, the head at the poll before, is used instead of polled.
	late    bool
	earlier uint64

	// writers are those that were open at the last poll, each with the head of the
	// poll before the one that saw it first: it has larger ids only. A writer that will
	// fill a gap below a head took the id before the head appeared, and its lock on
	// the table before that, so a poll that comes after the head shows it.
	writers map[writer]uint64
	heads   []head // in order, where a gap is given grace
}

// writer is a transaction that may fill a gap, as its source names it.
type writer uint64

// open are the transactions that are open; true for those that may be writers of
// the table.
type open map[writer]bool

// head is a head that was there at a time.
type head struct {
	id   uint64
	seen time.Time
}

// newWatermark goes on from a stored offset.
func newWatermark(settled uint64, seen position.Set) *watermark {
	w := &watermark{settled: settled, seen: seen, writers: make(map[writer]uint64)}
	w.settle(settled)
	w.frontier, w.polled, w.earlier = max(w.settled, w.seen.Max()), w.settled, w.settled
	return w
}

// page takes the ids of a page that was read from the frontier on.
func (w *watermark) page(ids []uint64) {
	for _, id := range ids {
		if id > w.horizon {
			w.seen.Add(id, id)
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
		w.seen.Add(id, id)
	}
	w.settle(w.settled)
}

// settle moves the watermark to id, and on past what was read right after it.
func (w *watermark) settle(id uint64) {
	w.settled = w.seen.Trim(max(id, w.settled))
	w.frontier = max(w.frontier, w.settled)
	w.polled, w.earlier = max(w.polled, w.settled), max(w.earlier, w.settled)
}

// waiting reports whether there are gaps below the frontier, or a head whose writers
// have not ended.
func (w *watermark) waiting() bool { return w.settled < max(w.frontier, w.polled) }

// full reports whether the set of ids above the gaps has reached its memory limit.
func (w *watermark) full() bool { return len(w.seen.Spans) >= maxSpans }

// observe records a head, and the writers that were open after it was read. It returns
// the range, lo and hi included, whose gaps the caller must read again, because a
// writer that has ended may have filled them. It also returns the id up to which
// nothing can appear after that reading: every writer that may have a smaller id has
// ended, and grace has passed since the head was there. The caller reads the range
// first, and calls end with the id afterwards.
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
		after = w.settled // who fills a gap may not show
		ended = min(ended, w.graced(id, now, grace))
	}
	w.earlier, w.polled = w.polled, id
	return position.Span{Lo: max(after, w.settled) + 1, Hi: id}, ended
}

// graced is the largest head that was there for as long as grace. Heads are noted
// a part of grace apart.
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

// awaited is the first id that may still appear, and how long it is waited for at most; 0 where that is not known: until the
// transactions end that are open.
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

// end says that nothing appears up to id any more, and that the gaps below it were
// read again since that is known.
func (w *watermark) end(id uint64) {
	w.horizon = max(w.horizon, id)
	w.settle(min(id, w.frontier))
}
