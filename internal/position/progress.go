// Package position is how far a reader of a topic is, and where one begins.
package position

import (
	"fmt"
	"strconv"
	"strings"
)

// Progress is how far a reader is: it has every row up to the watermark Settled, and those of Done above it. The zero value is
// before the first row. Not for concurrent use.
type Progress struct {
	// Settled is the watermark: there is nothing up to this id that the reader has not, and nothing can appear there any more.
	Settled uint64
	// Done are the ids above Settled that the reader has.
	Done Set
}

// Largest is the largest id that the reader has, or the watermark.
func (p *Progress) Largest() uint64 { return max(p.Settled, p.Done.Max()) }

// Has reports whether the reader has the row of the id, or no such row exists or can appear.
func (p *Progress) Has(id uint64) bool { return id <= p.Settled || p.Done.Contains(id) }

// Add notes a row. The watermark moves by Settle alone.
func (p *Progress) Add(id uint64) {
	if id > p.Settled {
		p.Done.Add(id, id)
	}
}

// Settle moves the watermark up to id, and past the rows right after it that the reader has.
func (p *Progress) Settle(id uint64) { p.Settled = p.Done.Trim(max(id, p.Settled)) }

// Clone is a copy that changes on its own.
func (p *Progress) Clone() Progress { return Progress{p.Settled, p.Done.Clone()} }

// Union is what either has.
func (p *Progress) Union(q *Progress) Progress {
	u := p.Clone()
	for _, s := range q.Done.Spans {
		u.Done.Add(s.Lo, s.Hi)
	}
	u.Settle(q.Settled)
	return u
}

// Common is what both have.
func (p *Progress) Common(q *Progress) Progress {
	c := Progress{Settled: min(p.Settled, q.Settled)}
	c.Done = p.above(c.Settled).Intersect(q.above(c.Settled))
	return c
}

// above are the ids above an id that is at most the watermark.
func (p *Progress) above(id uint64) Set {
	s := p.Done.Clone()
	if p.Settled > id {
		s.Add(id+1, p.Settled)
	}
	return s
}

// Covers reports whether the watermark is at or past every id that q has.
func (p *Progress) Covers(q *Progress) bool { return p.Settled >= q.Largest() }

// Text is the progress as a short text, such as "1041" or "1041+1043-1050,1052", for a reader that keeps it elsewhere; see
// ParseProgress. Of runs of ids above the watermark only the lowest most are in it: those that are not come again.
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

// ParseProgress reads what Text wrote. A plain number is a watermark.
func ParseProgress(text string) (Progress, error) {
	var p Progress
	wrong := fmt.Errorf("progress %q: write an id, or what was given as one before", text)
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
