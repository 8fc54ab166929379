package consumer

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// simulation is a table with writers, in the order in which a server does things,
// without the server: ids are taken, rows appear at the commit or never.
type simulation struct {
	random  *rand.Rand
	next    uint64              // the next id
	taken   map[writer][]uint64 // by the transactions that are open
	names   writer
	visible idSet
	closing bool // nobody begins any more
}

func (s *simulation) step() {
	if s.closing && len(s.taken) == 0 {
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
			if s.random.IntN(5) > 0 {
				for _, id := range ids {
					s.visible.add(id, id)
				}
			}
			delete(s.taken, name)
			break
		}
	}
}

func (s *simulation) open() open {
	o := make(open)
	for name, ids := range s.taken {
		o[name] = len(ids) > 0
	}
	return o
}

// read are the visible ids of (after, upTo], most of them at most.
func (s *simulation) read(after, upTo uint64, most int) (ids []uint64) {
	for _, p := range s.visible.spans {
		for id := max(p.lo, after+1); id <= min(p.hi, upTo); id++ {
			if len(ids) < most {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// The invariant: whatever the order of takes, commits, rollbacks and readings,
// every row is read once, and nothing appears below the watermark. The reader is
// the protocol's: page, then writers, then the gaps again. It begins anew from
// its stored progress at random.
func TestWatermarkSimulated(t *testing.T) {
	for seed := range uint64(1000) {
		for _, strict := range []bool{false, true} {
			random := rand.New(rand.NewPCG(seed, 7))
			s := &simulation{random: random, next: 1, taken: make(map[writer][]uint64)}
			r := &simulatedReader{simulation: s, wm: newWatermark(0, idSet{}), strict: strict, got: make(map[uint64]int)}
			for range 200 {
				r.steps()
				r.read1(t)
			}
			for s.closing = true; len(s.taken) > 0; {
				s.step()
			}
			for before := -1; before < len(r.got); { // until nothing more comes
				before = len(r.got)
				r.read1(t)
				r.read1(t)
				r.read1(t)
			}
			want := s.read(0, s.next, int(s.next))
			got := slices.Sorted(maps.Keys(r.got))
			require.True(t, slices.Equal(want, got), "seed %d, strict %v: lost %v, watermark %d, frontier %d, horizon %d", seed, strict,
				slices.DeleteFunc(want, func(id uint64) bool { return slices.Contains(got, id) }), r.wm.settled, r.wm.frontier, r.wm.horizon)
			for id, times := range r.got {
				require.Equal(t, 1, times, "seed %d: id %d", seed, id)
			}
			if !strict {
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

// steps lets the writers go on, at any place between two statements of the reader.
func (r *simulatedReader) steps() {
	for range r.random.IntN(4) {
		r.step()
	}
}

func (r *simulatedReader) take(t *testing.T, ids []uint64) {
	for _, id := range ids {
		r.got[id]++
		if r.strict {
			require.Greater(t, id, r.last, "out of order")
			r.last = id
		}
	}
}

func (r *simulatedReader) read1(t *testing.T) {
	if r.random.IntN(20) == 0 { // a restart, from what is stored
		stored := r.wm.seen.encode(r.wm.settled)
		seen, err := decodeIDSet(stored, r.wm.settled)
		require.NoError(t, err)
		r.wm = newWatermark(r.wm.settled, seen)
		head := slices.Max(append(r.read(0, r.next, int(r.next)), 0))
		r.steps()
		r.look(t, head)
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
	r.look(t, head)
}

func (r *simulatedReader) look(t *testing.T, head uint64) {
	open, now := r.open(), time.Now()
	r.steps()
	r.wm.note(head, open, now)
	again, ended := r.wm.check(open, now, 0)
	for _, s := range again {
		var ids []uint64
		for gap := range r.wm.seen.missing(max(s.lo-1, r.wm.settled), min(s.hi, r.wm.frontier)) {
			ids = append(ids, r.read(gap.lo-1, gap.hi, int(r.next))...)
		}
		r.take(t, ids)
		r.wm.reread(ids)
		r.steps()
	}
	if ended > 0 {
		r.wm.end(ended)
	}
	for _, ids := range r.taken { // the promise
		for _, id := range ids {
			require.Greater(t, id, r.wm.settled, "an id that may still appear is below the watermark")
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

// Notes that wait for the same writers are one, so that a transaction that stays
// open costs nothing more however many rows come meanwhile.
func TestWatermarkMergesNotes(t *testing.T) {
	w := newWatermark(0, idSet{})
	now := time.Now()
	w.page([]uint64{2})
	for id := uint64(3); id < 1000; id++ {
		w.page([]uint64{id})
		w.note(id, openOf(1), now)
		again, ended := w.check(openOf(1), now, 0)
		require.Empty(t, again)
		require.Zero(t, ended)
	}
	require.Len(t, w.notes, 1)
	require.Len(t, w.seen.spans, 1)
	again, ended := w.check(nil, now, 0)
	require.Equal(t, []span{{1, 999}}, again)
	w.end(ended)
	require.Equal(t, uint64(999), w.settled)
}

// With ever other writers the notes are bounded, and the first of them ends with
// its own writers: under a load that never rests the watermark goes on.
func TestWatermarkBoundsNotes(t *testing.T) {
	w := newWatermark(0, idSet{})
	now := time.Now()
	open := make(open)
	for n := uint64(1); n <= 10*maxNotes; n++ {
		open[writer(n)] = true
		w.page([]uint64{2 * n})
		w.note(2*n, open, now)
	}
	require.Len(t, w.notes, maxNotes)
	_, ended := w.check(open, now, 0)
	require.Zero(t, ended, "the first writer is open")
	delete(open, writer(1))
	_, ended = w.check(open, now, 0)
	require.Equal(t, uint64(2), ended)
	w.end(ended)
	w.note(w.frontier, open, now)
	_, ended = w.check(nil, now, 0)
	require.Equal(t, uint64(20*maxNotes), ended)
}

func TestWatermarkGrace(t *testing.T) {
	w := newWatermark(0, idSet{})
	now := time.Now()
	w.page([]uint64{5})
	w.note(5, nil, now)
	again, ended := w.check(nil, now.Add(time.Second), 2*time.Second)
	require.Equal(t, []span{{1, 5}}, again, "gaps are read again while they have grace")
	require.Zero(t, ended)
	_, ended = w.check(nil, now.Add(2*time.Second), 2*time.Second)
	require.Equal(t, uint64(5), ended)
}

func ExampleParsePosition() {
	for _, text := range []string{"beginning", "42", "2026-01-31", "yesterday"} {
		_, err := ParsePosition(text)
		fmt.Println(text, err == nil)
	}
	// Output:
	// beginning true
	// 42 true
	// 2026-01-31 true
	// yesterday false
}
