package main

import (
	"fmt"
	"strings"
)

// measured is one of the figures that are compared.
type measured struct {
	name, unit string
	more       bool // is better
	of         func(r *result) (float64, bool)
}

var compared = []measured{
	{"latency, p50", "ms", false, func(r *result) (float64, bool) { return r.latency50().Median, true }},
	{"latency, p99", "ms", false, func(r *result) (float64, bool) { return r.latency50().P99, true }},
	{"statements when idle", "a second", false, func(r *result) (float64, bool) { return r.idle, true }},
	{"statements of a further listener", "a second", false, func(r *result) (float64, bool) { return r.each, true }},
	{"publishing", "rows/s", true, func(r *result) (float64, bool) { return rate(r.publish), true }},
	{"reading a backlog", "rows/s", true, func(r *result) (float64, bool) { return rate(r.read), r.peer.keeps }},
	{"rows lost", "", false, func(r *result) (float64, bool) { return float64(r.lost), true }},
}

// better reports whether x is better by more than a tenth, and by more than chance: a tenth of a
// millisecond, a statement in ten seconds.
func (m measured) better(x, y float64) bool {
	if m.more {
		return x > 1.1*y
	}
	return 1.1*x < y && y-x > 0.1
}

// verdict says where a peer is better than mqnotify, and which targets are met.
func verdict(results []*result) string {
	var b strings.Builder
	b.WriteString("## Where another one is better\n\nBy more than a tenth, than each way of mqnotify, and by more than 0.1 of what is counted:\n\n")
	found := false
	for _, m := range compared {
		for _, r := range results {
			x, ok := m.of(r)
			if r.peer.ours || !ok {
				continue
			}
			best, all := "", true
			for _, mine := range results {
				if y, _ := m.of(mine); mine.peer.ours {
					all = all && m.better(x, y)
					best += fmt.Sprintf(", %s of *%s*", digits(y), strings.TrimPrefix(mine.peer.name, "mqnotify, "))
				}
			}
			if all {
				found = true
				fmt.Fprintf(&b, "- %s: %s, %s %s against %s\n", m.name, r.peer.name, digits(x), m.unit, strings.TrimPrefix(best, ", "))
			}
		}
	}
	if !found {
		b.WriteString("- nowhere in this run\n")
	}
	b.WriteString("\n## The targets\n\n")
	for _, r := range results {
		if r.peer.ours {
			fmt.Fprintf(&b, "%s:\n\n%s\n", r.peer.name, targets(r, results))
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// targets are the targets of one way of using mqnotify, compared with the worst case of the others.
func targets(mine *result, results []*result) string {
	var b strings.Builder
	line := func(met bool, format string, args ...any) {
		word := "missed"
		if met {
			word = "met"
		}
		fmt.Fprintf(&b, "- %s: %s\n", word, fmt.Sprintf(format, args...))
	}
	for _, r := range results {
		p50 := r.latency50().Median
		ratio := mine.latency50().Median / p50
		switch {
		case r.peer.ours:
		case strings.HasPrefix(r.peer.name, "PostgreSQL"):
			line(ratio <= 1.5, "latency within 1.5x of %s: %.2fx", r.peer.name, ratio)
		default:
			line(ratio < 1, "latency below that of %s: %.3fx", r.peer.name, ratio)
		}
		if r.peer.each > 0 {
			line(r.each >= 10*mine.each, "a tenth of the idle statements of %s for each further listener: %s against %s", r.peer.name, digits(mine.each), digits(r.each))
			line(r.idle >= 10*mine.idle, "the same for the first: %s against %s", digits(mine.idle), digits(r.idle))
		}
		if strings.HasPrefix(r.peer.name, "watermill") {
			line(rate(mine.read) >= 100*rate(r.read), "100 times the backlog rows of %s: %.0f times", r.peer.name, rate(mine.read)/rate(r.read))
		}
	}
	line(mine.lost == 0, "no row lost: %d of %d", mine.lost, mine.late)
	return b.String()
}
