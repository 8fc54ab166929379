package position

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// model is a set of small ids that is obviously correct.
type model [64]bool

func (m *model) spans() (all []Span) {
	for id, has := range m {
		switch {
		case !has:
		case id > 0 && m[id-1]:
			all[len(all)-1].Hi++
		default:
			all = append(all, Span{uint64(id), uint64(id)})
		}
	}
	return all
}

func (m *model) missing(after, upTo uint64) (all []Span) {
	for id := after + 1; id <= upTo; id++ {
		switch {
		case m[id]:
		case id > after+1 && !m[id-1]:
			all[len(all)-1].Hi++
		default:
			all = append(all, Span{id, id})
		}
	}
	return all
}

// FuzzIDSet runs operations on the set and on the model, and compares all
// results after each. An operation is three bytes: its kind, and two ids.
func FuzzIDSet(f *testing.F) {
	f.Add([]byte{0, 5, 9, 0, 11, 11, 0, 10, 10, 1, 6, 0})
	f.Add([]byte{0, 1, 1, 0, 3, 3, 0, 5, 5, 0, 2, 4, 1, 0, 0})
	f.Add([]byte{0, 60, 63, 0, 10, 20, 0, 9, 21, 1, 9, 0, 1, 63, 0})
	f.Fuzz(func(t *testing.T, operations []byte) {
		var set Set
		var m model
		floor := uint64(0)                                  // ids up to it were trimmed
		operations = operations[:min(len(operations), 120)] // more of them find no more
		for ; len(operations) >= 3; operations = operations[3:] {
			a, b := uint64(operations[1]%64), uint64(operations[2]%64)
			switch operations[0] % 2 {
			case 0:
				lo, hi := max(min(a, b), floor+1), max(a, b)
				if lo > hi {
					continue
				}
				set.Add(lo, hi)
				for id := lo; id <= hi; id++ {
					m[id] = true
				}
			case 1:
				want := a
				for want+1 < 64 && m[want+1] {
					want++
				}
				got := set.Trim(a)
				require.Equal(t, want, got, "trim(%d)", a)
				for id := uint64(0); id <= got; id++ {
					m[id] = false
				}
				floor = max(floor, got)
			}
			same(t, m.spans(), set.Spans, "spans")
			for id := range uint64(64) {
				if m[id] != set.Contains(id) {
					t.Fatalf("contains(%d): %v", id, !m[id])
				}
			}
			lo, hi := min(a, b), max(a, b)
			same(t, m.missing(lo, hi), slices.Collect(set.Missing(lo, hi)), "missing")

			base := floor
			if len(set.Spans) > 0 {
				require.Equal(t, set.Spans[len(set.Spans)-1].Hi, set.Max())
			}
			back, err := Decode(set.Encode(base), base)
			require.NoError(t, err)
			same(t, set.Spans, back.Spans, "stored and read")
		}
	})
}

// same compares spans; nil and empty are equal.
func same(t *testing.T, want, got []Span, what string) {
	t.Helper()
	require.True(t, slices.Equal(want, got), "%s: want %v, got %v", what, want, got)
}

// FuzzDecodeIDSet decodes arbitrary bytes: the result is an error or a sorted
// set, never a panic and never more memory than maxStored allows.
func FuzzDecodeIDSet(f *testing.F) {
	f.Add([]byte{1, 2, 0, 1}, uint64(7))
	f.Add([]byte{1, 3, 0, 255, 255, 63}, uint64(0))
	f.Add(binary.AppendUvarint([]byte{1, 1, 0}, math.MaxUint64), uint64(1))
	f.Add([]byte{2}, uint64(0))
	f.Fuzz(func(t *testing.T, stored []byte, base uint64) {
		set, err := Decode(stored, base)
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged)
			return
		}
		require.LessOrEqual(t, len(set.Spans), maxStored)
		for i, s := range set.Spans { // of which there may be a million: require would take seconds
			if s.Lo > s.Hi || s.Lo <= base || i > 0 && s.Lo-set.Spans[i-1].Hi <= 1 {
				t.Fatalf("span %d of base %d, %v, is empty or touches the one before", i, base, s)
			}
		}
	})
}

// Ids that step by three are a few bytes, however many they are.
func TestEncodeSteps(t *testing.T) {
	var set Set
	for id := uint64(4); id < 3_000_000; id += 3 {
		set.Add(id, id)
	}
	stored := set.Encode(1)
	require.LessOrEqual(t, len(stored), 8)
	back, err := Decode(stored, 1)
	require.NoError(t, err)
	require.Equal(t, set.Spans, back.Spans)
}

func TestIDSetAtTheLimits(t *testing.T) {
	var set Set
	set.Add(math.MaxUint64, math.MaxUint64)
	set.Add(math.MaxUint64-2, math.MaxUint64-2)
	require.Equal(t, []Span{{math.MaxUint64 - 2, math.MaxUint64 - 2}, {math.MaxUint64, math.MaxUint64}}, set.Spans)
	require.Equal(t, []Span{{1, math.MaxUint64 - 3}, {math.MaxUint64 - 1, math.MaxUint64 - 1}},
		slices.Collect(set.Missing(0, math.MaxUint64)))
	set.Add(math.MaxUint64-1, math.MaxUint64-1)
	require.Equal(t, []Span{{math.MaxUint64 - 2, math.MaxUint64}}, set.Spans)
	back, err := Decode(set.Encode(3), 3)
	require.NoError(t, err)
	require.Equal(t, set.Spans, back.Spans)
	require.Equal(t, uint64(math.MaxUint64), set.Trim(math.MaxUint64-3))
	require.Empty(t, set.Spans)
}
