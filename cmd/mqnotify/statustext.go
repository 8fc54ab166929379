package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
)

// text returns the status as text.
func (s *topicStatus) text() (string, error) {
	var out strings.Builder
	line := func(what, format string, args ...any) {
		if what != "" {
			what += ":"
		}
		fmt.Fprintf(&out, "%-11s %s\n", what, harmless(fmt.Sprintf(format, args...)))
	}
	head := ""
	if s.groups != nil {
		head = fmt.Sprintf(", the largest id is %d", s.groups.Head)
	}
	line("topic", "%s in %s%s", s.name, s.database, head)
	s.wakeText(line)
	switch {
	case s.note != nil:
		line("groups", "none: %v", s.note)
	case s.groups == nil:
		line("groups", "unknown")
	case len(s.groups.Groups) == 0:
		line("groups", "none")
	default:
		out.WriteString("\n" + groupTable(s.groups.Groups))
		for _, g := range s.groups.Groups {
			if g.Partitions > 0 {
				out.WriteString("\n" + memberTable(g))
			}
		}
	}
	for _, finding := range s.findings {
		out.WriteString("\n")
		if err := showFinding(&out, finding); err != nil {
			return "", err
		}
	}
	return out.String(), nil
}

// wakeText shows the wake triggers of the table, and the processes that wait for them.
func (s *topicStatus) wakeText(line func(what, format string, args ...any)) {
	for _, t := range s.triggers {
		if t.Problem != "" {
			line("trigger", "%s does not work: %s (mqnotify wake install %s --on %s)", t.Trigger, t.Problem, s.name, t.Event)
		}
	}
	if len(s.wakes) > 0 {
		line("trigger", "wakes the listeners at every %s", strings.Join(s.wakes, ", "))
	} else {
		line("trigger", "none that works, as far as this account may see: listeners poll (mqnotify wake install %s)", s.name)
	}
	line("gate", "%v", s.gate)
}

func groupTable(groups []consumer.GroupStatus) string {
	rows := []string{"GROUP\tMEMBER\tOFFSET\tDONE ABOVE\tGAPS\tLAG\tSTORED\tDEAD LETTERS"}
	for _, g := range groups {
		member := "none; the last was " + g.Member
		switch {
		case g.Partitions > 0:
			member = fmt.Sprintf("%d share %d partitions", active(g), g.Partitions)
		case g.Session != 0:
			member = fmt.Sprintf("%s, session %d", g.Member, g.Session)
		case g.Leased:
			member = g.Member + ", by a lease"
		}
		lag := atLeast(g.Waiting, g.MoreWaiting)
		if g.MoreWaiting {
			lag += fmt.Sprintf(" of %d ids", g.Behind)
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%d\t%d\t%d\t%s\t%s ago\t%s", harmless(g.Group), harmless(member),
			g.Settled, g.Done, g.Gaps, lag, roughly(g.Moved), atLeast(g.DeadLetters, g.MoreDeadLetters)))
	}
	return aligned(rows)
}

// atLeast formats a number: "10000+" if there may be more.
func atLeast(n int, more bool) string {
	if more {
		return strconv.Itoa(n) + "+"
	}
	return strconv.Itoa(n)
}

// active returns the number of members that share a group now.
func active(g consumer.GroupStatus) (n int) {
	for _, m := range g.Members {
		if m.Session != 0 {
			n++
		}
	}
	return n
}

// memberTable formats the members that share a group.
func memberTable(g consumer.GroupStatus) string {
	rows := []string{fmt.Sprintf("MEMBER OF %s\tSESSION\tPARTITIONS BY %s\tOFFSET\tLAG", harmless(g.Group), harmless(strings.ToUpper(g.PartitionBy)))}
	for _, m := range g.Members {
		name, session := m.Member, strconv.FormatUint(m.Session, 10)
		if m.Session == 0 {
			name, session = "none", "-"
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%d: %s\t%d\t%s", harmless(name), session, len(m.Partitions), ranges(m.Partitions), m.Settled, atLeast(m.Waiting, m.MoreWaiting)))
	}
	return aligned(rows)
}

// ranges formats ascending numbers: "0-3 7".
func ranges(numbers []int) string {
	var all []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		text := strconv.Itoa(numbers[i])
		if j > i {
			text += "-" + strconv.Itoa(numbers[j])
		}
		all = append(all, text)
		i = j + 1
	}
	return strings.Join(all, " ")
}

// roughly formats a duration in its one or two largest units.
func roughly(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%dd", d/day)
	case d >= time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case d >= time.Second:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Millisecond).String()
}
