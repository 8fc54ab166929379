package consumer

import (
	"fmt"
	"strconv"
	"strings"
)

// Progress is how far a reader is: it has every row up to the watermark, and some above
// it. The zero value is before the first row. Not for concurrent use.
type Progress struct{ p progress }

// Settled is the watermark: there is nothing up to this id that the reader has not, and
// nothing can appear there any more.
func (p *Progress) Settled() uint64 { return p.p.settled }

// Largest is the largest id that the reader has, or the watermark.
func (p *Progress) Largest() uint64 { return max(p.p.settled, p.p.done.max()) }

// Has reports whether the reader has the row of the id, or no such row exists or can appear.
func (p *Progress) Has(id uint64) bool { return id <= p.p.settled || p.p.done.contains(id) }

// Add notes a row. The watermark moves by Settle alone.
func (p *Progress) Add(id uint64) {
	if id > p.p.settled {
		p.p.done.add(id, id)
	}
}

// Settle moves the watermark up to id, and past the rows right after it that the reader has.
func (p *Progress) Settle(id uint64) { p.p.settle(id) }

// Clone is a copy that changes on its own.
func (p *Progress) Clone() Progress { return Progress{p.p.clone()} }

// Union is what either has.
func (p *Progress) Union(q *Progress) Progress { return Progress{p.p.union(&q.p)} }

// Text is the progress as a short text, such as "1041" or "1041+1043-1050,1052", for a
// reader that keeps it elsewhere; see ParseProgress. Of runs of ids above the watermark
// only the lowest most are in it: those that are not come again.
func (p *Progress) Text(most int) string {
	text := strconv.AppendUint(nil, p.p.settled, 10)
	for i, s := range p.p.done.spans[:min(most, len(p.p.done.spans))] {
		text = append(text, "+,"[min(i, 1)])
		text = strconv.AppendUint(text, s.lo, 10)
		if s.hi > s.lo {
			text = strconv.AppendUint(append(text, '-'), s.hi, 10)
		}
	}
	return string(text)
}

// maxProgressText is more than any Text of a reasonable number of runs.
const maxProgressText = 64 << 10

// ParseProgress reads what Text wrote. A plain number is a watermark.
func ParseProgress(text string) (Progress, error) {
	var p Progress
	if len(text) > maxProgressText {
		return p, fmt.Errorf("consumer: a progress of %d characters is too long", len(text))
	}
	wrong := fmt.Errorf("consumer: progress %q: write an id, or what was given as one before", text)
	settled, rest, more := strings.Cut(text, "+")
	var err error
	if p.p.settled, err = strconv.ParseUint(settled, 10, 64); err != nil {
		return Progress{}, wrong
	}
	if !more {
		return p, nil
	}
	last := p.p.settled
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
		p.p.done.add(lo, hi)
		last = hi
	}
	p.p.settle(p.p.settled)
	return p, nil
}

// progress is what a group has done: every id up to settled, and done above it.
type progress struct {
	settled uint64
	done    idSet
}

// handled notes a message.
func (p *progress) handled(id uint64, inOrder bool) {
	if inOrder {
		p.settle(id)
	} else {
		p.done.add(id, id)
	}
}

func (p *progress) settle(id uint64) { p.settled = p.done.trim(max(id, p.settled)) }

func (p *progress) clone() progress { return progress{p.settled, p.done.clone()} }

// union is what either has.
func (p *progress) union(q *progress) progress {
	u := p.clone()
	for _, s := range q.done.spans {
		u.done.add(s.lo, s.hi)
	}
	u.settle(q.settled)
	return u
}

// common is what both have.
func (p *progress) common(q *progress) progress {
	c := progress{settled: min(p.settled, q.settled)}
	c.done = p.above(c.settled).intersect(q.above(c.settled))
	return c
}

// above are the ids above an id that is at most the watermark.
func (p *progress) above(id uint64) idSet {
	s := p.done.clone()
	if p.settled > id {
		s.add(id+1, p.settled)
	}
	return s
}

// covers reports whether the watermark is at or past every id that q has.
func (p *progress) covers(q *progress) bool { return p.settled >= max(q.settled, q.done.max()) }
