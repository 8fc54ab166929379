// Package position has the progress of a reader of a topic, and the position where a reader begins.
package position

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Progress is the progress of a reader: it has read every row up to the watermark Settled, and the ids of Done above it. The zero
// value is before the first row. Not safe for concurrent use.
type Progress struct {
	// Settled is the watermark: the reader has read every row up to this id, and no further row can appear there.
	Settled uint64
	// Done are the ids above Settled that the reader has read.
	Done Set
}

// Largest returns the largest id that the reader has read, or the watermark.
func (p *Progress) Largest() uint64 { return max(p.Settled, p.Done.Max()) }

// Has reports whether the reader has read the row of the id, or no row with this id can appear.
func (p *Progress) Has(id uint64) bool { return id <= p.Settled || p.Done.Contains(id) }

// Add records a row. Only Settle moves the watermark.
func (p *Progress) Add(id uint64) {
	if id > p.Settled {
		p.Done.Add(id, id)
	}
}

// Settle moves the watermark up to id, and further over the ids directly after it that the reader has read.
func (p *Progress) Settle(id uint64) { p.Settled = p.Done.Trim(max(id, p.Settled)) }

// Clone returns an independent copy.
func (p *Progress) Clone() Progress { return Progress{p.Settled, p.Done.Clone()} }

// Union returns what at least one of the two has read.
func (p *Progress) Union(q *Progress) Progress {
	u := p.Clone()
	for _, s := range q.Done.Spans {
		u.Done.Add(s.Lo, s.Hi)
	}
	u.Settle(q.Settled)
	return u
}

// Common returns what both have read.
func (p *Progress) Common(q *Progress) Progress {
	c := Progress{Settled: min(p.Settled, q.Settled)}
	c.Done = p.above(c.Settled).Intersect(q.above(c.Settled))
	return c
}

// above returns the ids above an id, which is at most the watermark.
func (p *Progress) above(id uint64) Set {
	s := p.Done.Clone()
	if p.Settled > id {
		s.Add(id+1, p.Settled)
	}
	return s
}

// Covers reports whether the watermark has reached every id that q has.
func (p *Progress) Covers(q *Progress) bool { return p.Settled >= q.Largest() }

// Text returns the progress as a short text, such as "1041" or "1041+1043-1050,1052", for a reader that stores it elsewhere; see
// ParseProgress. Of the runs of ids above the watermark it contains only the lowest most; the reader reads the others again.
func (p *Progress) Text(most int) string {
	text := strconv.AppendUint(nil, p.Settled, 10)
	for i, s := range p.Done.Spans[:min(most, len(p.Done.Spans))] {
		text = append(text, "+,"[min(i, 1)])
		text = strconv.AppendUint(text, s.Lo, 10)
		if s.Hi > s.Lo {
			text = strconv.AppendUint(append(text, '-'), s.Hi, 10)
		}
	}
	return string(text)
}

// ParseProgress parses a result of Text. A plain number is a watermark.
func ParseProgress(text string) (Progress, error) {
	var p Progress
	wrong := fmt.Errorf("progress %q: write an id, or a progress that was returned before", text)
	settled, rest, more := strings.Cut(text, "+")
	var err error
	if p.Settled, err = strconv.ParseUint(settled, 10, 64); err != nil {
		return Progress{}, wrong
	}
	if !more {
		return p, nil
	}
	last := p.Settled
	for run := range strings.SplitSeq(rest, ",") {
		from, to, isRange := strings.Cut(run, "-")
		lo, err := strconv.ParseUint(from, 10, 64)
		if err != nil || lo <= last {
			return Progress{}, wrong
		}
		hi := lo
		if isRange {
			if hi, err = strconv.ParseUint(to, 10, 64); err != nil || hi <= lo {
				return Progress{}, wrong
			}
		}
		p.Done.Add(lo, hi)
		last = hi
	}
	p.Settle(p.Settled)
	return p, nil
}

// Span is a range of ids, both ends included.
type Span struct{ Lo, Hi uint64 }

// Set is a set of ids as sorted spans, with at least one missing id between two of them. Its size grows with the number of gaps, not
// with the number of ids. Not safe for concurrent use.
type Set struct{ Spans []Span }

// Add adds the ids lo to hi.
func (s *Set) Add(lo, hi uint64) {
	n := len(s.Spans)
	if n == 0 || lo > s.Spans[n-1].Hi { // the usual case: after the last span
		if n > 0 && lo-s.Spans[n-1].Hi == 1 {
			s.Spans[n-1].Hi = hi
		} else {
			s.Spans = append(s.Spans, Span{lo, hi})
		}
		return
	}
	// The spans from i up to j touch the new one and are merged with it.
	i := s.search(lo)
	if i > 0 && lo-s.Spans[i-1].Hi == 1 {
		i--
	}
	j := i
	for j < n && (s.Spans[j].Lo <= hi || s.Spans[j].Lo-hi == 1) {
		lo, hi = min(lo, s.Spans[j].Lo), max(hi, s.Spans[j].Hi)
		j++
	}
	s.Spans = slices.Replace(s.Spans, i, j, Span{lo, hi})
}

// Contains reports whether the id is in the set.
func (s *Set) Contains(id uint64) bool {
	i := s.search(id)
	return i < len(s.Spans) && s.Spans[i].Lo <= id
}

// search returns the index of the first span that ends at id or after it.
func (s *Set) search(id uint64) int {
	return sort.Search(len(s.Spans), func(i int) bool { return s.Spans[i].Hi >= id })
}

// Trim removes the ids up to id, id included. It returns the last id of the run that
// begins directly after id, or id itself if there is none. It removes this run, too.
func (s *Set) Trim(id uint64) uint64 {
	i := s.search(id)
	if i < len(s.Spans) && (s.Spans[i].Lo <= id || s.Spans[i].Lo-id == 1) {
		id = s.Spans[i].Hi
		i++
	}
	s.Spans = slices.Delete(s.Spans, 0, i)
	return id
}

// Missing yields the ranges of (after, upTo] that are not in the set.
func (s *Set) Missing(after, upTo uint64) iter.Seq[Span] {
	return func(yield func(Span) bool) {
		for i := s.search(after + 1); after < upTo; i++ {
			if i >= len(s.Spans) || s.Spans[i].Lo > upTo {
				yield(Span{after + 1, upTo})
				return
			}
			if p := s.Spans[i]; p.Lo > after+1 && !yield(Span{after + 1, p.Lo - 1}) {
				return
			}
			after = s.Spans[i].Hi
		}
	}
}

// Max returns the largest id of the set, or 0 if it is empty.
func (s *Set) Max() uint64 {
	if len(s.Spans) == 0 {
		return 0
	}
	return s.Spans[len(s.Spans)-1].Hi
}

// Intersect returns the ids that are in both sets.
func (s Set) Intersect(other Set) (both Set) {
	for i, j := 0, 0; i < len(s.Spans) && j < len(other.Spans); {
		a, b := s.Spans[i], other.Spans[j]
		if lo, hi := max(a.Lo, b.Lo), min(a.Hi, b.Hi); lo <= hi {
			both.Add(lo, hi)
		}
		if a.Hi < b.Hi {
			i++
		} else {
			j++
		}
	}
	return both
}

// Clone returns an independent copy.
func (s *Set) Clone() Set { return Set{slices.Clone(s.Spans)} }

// The stored form is a version byte and then triples of varints: a gap, which is the first id after it less the last id before it;
// the length of the span behind it less one; and how often this pair repeats. Ids that grow by three, as with
// auto_increment_increment = 3, are one triple however many they are.
const version = 1

// ErrDamaged means that Decode could not decode the bytes.
var ErrDamaged = errors.New("the stored ids are damaged")

// Encode returns the set's stored form, relative to base, which must be below all its ids.
func (s *Set) Encode(base uint64) []byte {
	out := []byte{version}
	for i := 0; i < len(s.Spans); {
		gap, length := s.Spans[i].Lo-base, s.Spans[i].Hi-s.Spans[i].Lo
		repeat := 1
		for base = s.Spans[i].Hi; i+repeat < len(s.Spans); repeat++ {
			next := s.Spans[i+repeat]
			if next.Lo-base != gap || next.Hi-next.Lo != length {
				break
			}
			base = next.Hi
		}
		out = binary.AppendUvarint(out, gap)
		out = binary.AppendUvarint(out, length)
		out = binary.AppendUvarint(out, uint64(repeat))
		i += repeat
	}
	return out
}

// maxStored is the maximum number of spans that Decode accepts, so that damaged bytes cost little memory. A consumer keeps 2^20
// spans and those of one more page.
const maxStored = 16 << 20

// Decode decodes the result of Encode with the same base.
func Decode(stored []byte, base uint64) (Set, error) {
	var s Set
	if len(stored) == 0 {
		return s, nil
	}
	if stored[0] != version {
		return s, ErrDamaged
	}
	for rest := stored[1:]; len(rest) > 0; {
		var triple [3]uint64
		for i := range triple {
			value, n := binary.Uvarint(rest)
			if n <= 0 {
				return Set{}, ErrDamaged
			}
			triple[i], rest = value, rest[n:]
		}
		gap, length, repeat := triple[0], triple[1], triple[2]
		if gap == 0 || repeat == 0 || repeat > maxStored || len(s.Spans)+int(repeat) > maxStored {
			return Set{}, ErrDamaged
		}
		for range repeat {
			lo := base + gap
			hi := lo + length
			if lo < base || hi < lo {
				return Set{}, ErrDamaged
			}
			s.Add(lo, hi)
			base = hi
		}
	}
	return s, nil
}
