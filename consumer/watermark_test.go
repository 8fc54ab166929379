package consumer

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/position"
)

// simulation is a table with writers, without a server. It makes the steps in the order of a server:
// ids are taken, and rows appear at the commit or never.
type simulation struct {
	random  *rand.Rand
	next    uint64              // the next id
	taken   map[writer][]uint64 // by the transactions that are open
	names   writer
	visible position.Set
	closing bool   // no writer begins any more
	pinned  writer // never ends, if not 0
	late    bool   // a writer shows at the poll after the first that it could show at
	shown   map[writer]bool
}

func (s *simulation) step() {
	if s.idle() {
		return
	}
	switch pick := s.random.IntN(4); {
	case pick == 0 && !s.closing: // begin
		s.names++
		s.taken[s.names] = nil
		fallthrough
	case pick == 1: // take ids, some of which will have no row
		for name := range s.taken {
			for range s.random.IntN(4) {
				s.taken[name] = append(s.taken[name], s.next)
				s.next += 1 + s.random.Uint64N(3)
			}
			break
		}
	default: // commit or roll back
		for name, ids := range s.taken {
			if name == s.pinned {
				continue
			}
			if s.random.IntN(5) > 0 {
				for _, id := range ids {
					s.visible.Add(id, id)
				}
			}
			delete(s.taken, name)
			break
		}
	}
}

// idle reports whether all writers that will end have ended.
func (s *simulation) idle() bool {
	_, pinned := s.taken[s.pinned]
	return s.closing && (len(s.taken) == 0 || pinned && len(s.taken) == 1)
}

func (s *simulation) open() open {
	o := make(open)
	for name, ids := range s.taken {
		if s.late && len(ids) > 0 && !s.shown[name] { // it took its ids just now
			s.shown[name] = true
			continue
		}
		o[name] = len(ids) > 0
	}
	return o
}

// read returns the first visible ids of (after, upTo]; most is their limit.
func (s *simulation) read(after, upTo uint64, most int) (ids []uint64) {
	for _, p := range s.visible.Spans {
		for id := max(p.Lo, after+1); id <= min(p.Hi, upTo); id++ {
			if len(ids) < most {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// The invariant: whatever the order of taken ids, commits, rollbacks and reads,
// every row is read once, and no row appears below the watermark. The reader follows
// the protocol: page, then writers, then the gaps again. It restarts from
// its stored progress at random. A writer that never ends may be among the writers.
func TestWatermarkSimulated(t *testing.T) {
	t.Parallel()
	first := mysqltest.Random(t).Uint64()
	for seed := first; seed != first+mysqltest.Many[uint64](40, 400, 5000); seed++ {
		for _, strict := range []bool{false, true} {
			random := rand.New(rand.NewPCG(seed, 7))
			s := &simulation{random: random, next: 1, taken: make(map[writer][]uint64), shown: make(map[writer]bool)}
			s.late = seed%3 == 0
			if !strict && seed%2 == 0 { // a transaction that stays open delays its own rows only
				s.pinned = 1 + writer(random.IntN(20))
			}
			r := &simulatedReader{simulation: s, wm: newWatermark(0, position.Set{}), strict: strict, got: make(map[uint64]int)}
			r.wm.late = s.late
			for range 200 {
				r.steps()
				r.read1(t)
			}
			for s.closing = true; !s.idle(); {
				s.step()
			}
			for before := -1; before < len(r.got); { // until nothing more comes
				before = len(r.got)
				for range 6 {
					r.read1(t)
				}
			}
			want := s.read(0, s.next, int(s.next))
			got := slices.Sorted(maps.Keys(r.got))
			require.True(t, slices.Equal(want, got), "seed %d, strict %v: lost %v, watermark %d, frontier %d, horizon %d", seed, strict,
				slices.DeleteFunc(want, func(id uint64) bool { return slices.Contains(got, id) }), r.wm.settled, r.wm.frontier, r.wm.horizon)
			for id, times := range r.got {
				if times != 1 {
					t.Fatalf("seed %d: id %d was read %d times", seed, id, times)
				}
			}
			if !strict && s.pinned == 0 {
				require.False(t, r.wm.waiting(), "seed %d: nobody is left to wait for", seed)
			}
		}
	}
}

type simulatedReader struct {
	*simulation
	wm     *watermark
	strict bool
	got    map[uint64]int
	last   uint64
}

// steps lets the writers continue, at any place between two statements of the reader.
func (r *simulatedReader) steps() {
	for range r.random.IntN(4) {
		r.step()
	}
}

func (r *simulatedReader) take(t *testing.T, ids []uint64) {
	for _, id := range ids {
		r.got[id]++
		if r.strict {
			if id <= r.last {
				t.Fatalf("id %d after %d", id, r.last)
			}
			r.last = id
		}
	}
}

func (r *simulatedReader) read1(t *testing.T) {
	if r.random.IntN(20) == 0 { // a restart, from what is stored
		stored := r.wm.seen.Encode(r.wm.settled)
		seen, err := position.Decode(stored, r.wm.settled)
		require.NoError(t, err)
		r.wm = newWatermark(r.wm.settled, seen)
		r.wm.late = r.late
		head := slices.Max(append(r.read(0, r.next, int(r.next)), 0))
		r.steps()
		r.pollWriters(t, head)
	}
	page := r.read(r.wm.frontier, r.next, 1+r.random.IntN(8))
	r.steps()
	head := r.wm.frontier
	if len(page) > 0 {
		head = page[len(page)-1]
	}
	if r.strict {
		page = page[:r.wm.certain(page)]
	}
	r.take(t, page)
	r.wm.page(page)
	r.pollWriters(t, head)
}

func (r *simulatedReader) pollWriters(t *testing.T, head uint64) {
	open, now := r.open(), time.Now()
	r.steps()
	again, ended := r.wm.observe(head, open, now, 0)
	var ids []uint64
	for gap := range r.wm.seen.Missing(max(again.Lo-1, r.wm.settled), min(again.Hi, r.wm.frontier)) {
		ids = append(ids, r.read(gap.Lo-1, gap.Hi, int(r.next))...)
	}
	r.take(t, ids)
	r.wm.reread(ids)
	r.steps()
	r.wm.end(ended)
	for _, ids := range r.taken { // the promise
		for _, id := range ids {
			if id <= r.wm.settled {
				t.Fatalf("id %d may still appear, and is below the watermark %d", id, r.wm.settled)
			}
		}
	}
}

func openOf(names ...writer) open {
	o := make(open)
	for _, name := range names {
		o[name] = true
	}
	return o
}

// A transaction that stays open costs nothing, however many rows are inserted in the meantime.
func TestWatermarkOneLongWriter(t *testing.T) {
	w := newWatermark(0, position.Set{})
	now := time.Now()
	for id := uint64(2); id < 1000; id++ {
		w.page([]uint64{id})
		again, ended := w.observe(id, openOf(1), now, 0)
		w.end(ended)
		require.Zero(t, w.settled)
		if id > 2 {
			require.Empty(t, gapsOf(w, again))
		}
	}
	require.Len(t, w.writers, 1)
	require.Len(t, w.seen.Spans, 1)
	again, ended := w.observe(999, nil, now, 0)
	require.Equal(t, []position.Span{{Lo: 1, Hi: 1}}, gapsOf(w, again))
	w.end(ended)
	require.Equal(t, uint64(999), w.settled)
}

// While a transaction stays open, the reader reads the gaps of other writers again when
// these end, and only the gaps that they may have left.
func TestWatermarkManyShortWriters(t *testing.T) {
	w := newWatermark(0, position.Set{})
	now := time.Now()
	w.page([]uint64{2})
	w.observe(2, openOf(1), now, 0)
	for id := uint64(4); id < 1000; id += 2 {
		w.page([]uint64{id})
		open := openOf(1)
		if id%4 == 0 { // who has id-1 is seen; else he came and went between the page and the poll
			open[writer(id)] = true
		}
		again, ended := w.observe(id, open, now, 0)
		require.Equal(t, []position.Span{{Lo: id - 1, Hi: id - 1}}, gapsOf(w, again))
		w.end(ended)
		again, ended = w.observe(id, openOf(1), now, 0)
		if id%4 == 0 {
			require.Equal(t, []position.Span{{Lo: id - 1, Hi: id - 1}}, gapsOf(w, again))
		} else {
			require.Empty(t, gapsOf(w, again))
		}
		w.end(ended)
	}
	require.Zero(t, w.settled)
	require.Len(t, w.writers, 1)
}

// gapsOf returns the gaps of a span that the reader would read again.
func gapsOf(w *watermark, s position.Span) []position.Span {
	return slices.Collect(w.seen.Missing(max(s.Lo-1, w.settled), min(s.Hi, w.frontier)))
}

// Under a load without pauses the watermark still moves.
func TestWatermarkNeverRests(t *testing.T) {
	w := newWatermark(0, position.Set{})
	now := time.Now()
	open := make(open)
	for n := uint64(1); n <= 1000; n++ { // each lives for ten polls
		open[writer(n)] = true
		if n > 10 {
			delete(open, writer(n-10))
		}
		w.page([]uint64{2 * n})
		_, ended := w.observe(2*n, open, now, 0)
		w.end(ended)
		if n > 20 {
			require.Equal(t, 2*(n-10), w.settled)
		}
	}
}

func TestWatermarkGrace(t *testing.T) {
	w := newWatermark(0, position.Set{})
	now := time.Now()
	const grace = 2 * time.Second
	w.page([]uint64{5})
	again, ended := w.observe(5, nil, now, grace)
	require.Equal(t, position.Span{Lo: 1, Hi: 5}, again)
	require.Zero(t, ended)
	again, ended = w.observe(5, nil, now.Add(time.Second), grace)
	require.Equal(t, position.Span{Lo: 1, Hi: 5}, again, "gaps are read again while they have grace")
	require.Zero(t, ended)
	_, ended = w.observe(5, nil, now.Add(grace), grace)
	require.Equal(t, uint64(5), ended)
	w.end(ended)
	require.False(t, w.waiting())

	// Heads that come all the time have a grace period each, and need little memory.
	for n := range 10_000 {
		now = now.Add(10 * time.Millisecond)
		id := uint64(7 + 2*n)
		w.page([]uint64{id})
		_, ended := w.observe(id, nil, now, grace)
		w.end(ended)
		require.LessOrEqual(t, len(w.heads), graceParts+2)
		if n > 300 {
			require.GreaterOrEqual(t, w.settled, id-2*200-20)
			require.LessOrEqual(t, w.settled, id-2*200)
		}
	}
}
