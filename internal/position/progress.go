// Package position has the progress of a reader of a topic, and the position where a reader begins.
package position

import (
	"fmt"
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
