package consumer

import (
	"encoding/binary"
	"errors"
	"iter"
	"slices"
)

// span is a range of ids, both ends included.
type span struct{ lo, hi uint64 }

// idSet is a set of ids as spans in order, with at least one id missing between
// two of them. What it costs grows with the gaps, not with the ids.
type idSet struct{ spans []span }

// add adds the ids lo to hi.
func (s *idSet) add(lo, hi uint64) {
	n := len(s.spans)
	if n == 0 || lo > s.spans[n-1].hi { // the usual case: past the end
		if n > 0 && lo-s.spans[n-1].hi == 1 {
			s.spans[n-1].hi = hi
		} else {
			s.spans = append(s.spans, span{lo, hi})
		}
		return
	}
	// The spans from i up to j touch the new one and become one with it.
	i, _ := slices.BinarySearchFunc(s.spans, lo, func(p span, lo uint64) int {
		if p.hi < lo && lo-p.hi > 1 {
			return -1
		}
		return 1
	})
	j := i
	for j < n && (s.spans[j].lo <= hi || s.spans[j].lo-hi == 1) {
		lo, hi = min(lo, s.spans[j].lo), max(hi, s.spans[j].hi)
		j++
	}
	s.spans = slices.Replace(s.spans, i, j, span{lo, hi})
}

func (s *idSet) contains(id uint64) bool {
	i := s.search(id)
	return i < len(s.spans) && s.spans[i].lo <= id
}

// search is the index of the first span that ends at id or past it.
func (s *idSet) search(id uint64) int {
	i, _ := slices.BinarySearchFunc(s.spans, id, func(p span, id uint64) int {
		if p.hi < id {
			return -1
		}
		return 1
	})
	return i
}

// trim forgets the ids up to and with id. It returns the last id of the run that
// begins right after id, id itself when there is none.
func (s *idSet) trim(id uint64) uint64 {
	i := s.search(id)
	if i < len(s.spans) && (s.spans[i].lo <= id || s.spans[i].lo-id == 1) {
		id = s.spans[i].hi
		i++
	}
	if i < len(s.spans) && s.spans[i].lo-1 == id { // the first span ended right at id
		id = s.spans[i].hi
		i++
	}
	s.spans = slices.Delete(s.spans, 0, i)
	return id
}

// missing yields the ranges of (after, upTo] that are not in the set.
func (s *idSet) missing(after, upTo uint64) iter.Seq[span] {
	return func(yield func(span) bool) {
		for i := s.search(after + 1); after < upTo; i++ {
			if i >= len(s.spans) || s.spans[i].lo > upTo {
				yield(span{after + 1, upTo})
				return
			}
			if p := s.spans[i]; p.lo > after+1 && !yield(span{after + 1, p.lo - 1}) {
				return
			}
			after = s.spans[i].hi
		}
	}
}

// max is the largest id of the set, 0 for an empty one.
func (s *idSet) max() uint64 {
	if len(s.spans) == 0 {
		return 0
	}
	return s.spans[len(s.spans)-1].hi
}

// intersect are the ids of both sets.
func (s idSet) intersect(other idSet) (both idSet) {
	for i, j := 0, 0; i < len(s.spans) && j < len(other.spans); {
		a, b := s.spans[i], other.spans[j]
		if lo, hi := max(a.lo, b.lo), min(a.hi, b.hi); lo <= hi {
			both.add(lo, hi)
		}
		if a.hi < b.hi {
			i++
		} else {
			j++
		}
	}
	return both
}

func (s *idSet) clone() idSet { return idSet{slices.Clone(s.spans)} }

// The stored form is a version byte and then triples of numbers (varints): a gap's
// length, the length of the span behind it, both less one but the first gap, and
// how often this pair repeats itself. Ids that step by three, as
// auto_increment_increment makes them, are one triple however many they are.
const idSetVersion = 1

var errIDSet = errors.New("the stored ids are damaged")

// encode is the set's stored form, for ids above base.
func (s *idSet) encode(base uint64) []byte {
	out := []byte{idSetVersion}
	for i := 0; i < len(s.spans); {
		gap, length := s.spans[i].lo-base, s.spans[i].hi-s.spans[i].lo
		repeat := 1
		for base = s.spans[i].hi; i+repeat < len(s.spans); repeat++ {
			next := s.spans[i+repeat]
			if next.lo-base != gap || next.hi-next.lo != length {
				break
			}
			base = next.hi
		}
		out = binary.AppendUvarint(out, gap)
		out = binary.AppendUvarint(out, length)
		out = binary.AppendUvarint(out, uint64(repeat))
		i += repeat
	}
	return out
}

// maxStored bounds what a damaged form can cost. The handler's side may lag behind
// the reader's maxSpans by what was read since.
const maxStored = 16 * maxSpans

// decodeIDSet reads what encode wrote with the same base.
func decodeIDSet(stored []byte, base uint64) (idSet, error) {
	var s idSet
	if len(stored) == 0 {
		return s, nil
	}
	if stored[0] != idSetVersion {
		return s, errIDSet
	}
	for rest := stored[1:]; len(rest) > 0; {
		var triple [3]uint64
		for i := range triple {
			value, n := binary.Uvarint(rest)
			if n <= 0 {
				return idSet{}, errIDSet
			}
			triple[i], rest = value, rest[n:]
		}
		gap, length, repeat := triple[0], triple[1], triple[2]
		if gap == 0 || repeat == 0 || repeat > maxStored || len(s.spans)+int(repeat) > maxStored {
			return idSet{}, errIDSet
		}
		for range repeat {
			lo := base + gap
			hi := lo + length
			if lo < base || hi < lo {
				return idSet{}, errIDSet
			}
			s.add(lo, hi)
			base = hi
		}
	}
	return s, nil
}
