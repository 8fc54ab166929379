package position

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// From is where a reader of a topic begins. The zero value means the end.
type From struct {
	Kind Kind
	// Last is how many of the newest rows the reader gets first. It is for Newest.
	Last int
	// ID is the first id, 1 or more. It is for ID.
	ID uint64
	// Time is for Time.
	Time time.Time
	// Ago is a time before the server's current time, 0 or more. It is for Ago.
	Ago time.Duration
	// Progress is what the reader has read already. It is for After.
	Progress Progress
}

// Kind is the kind of a From. It determines which other field counts.
type Kind int

// The kinds of places to begin at.
const (
	Newest Kind = iota
	ID
	Time
	Ago
	After
)

const (
	last  = "last "
	after = "after "
)

// Text returns the position of a reader with this progress, as a text for Parse.
func Text(p *Progress) string { return after + p.Text(math.MaxInt) }

// Parse parses "beginning", "end", "last N", an id, a time in RFC 3339, or as "2006-01-02" or "2006-01-02 15:04:05" in UTC, a
// duration ago ("90m"), or a text that Text returned. An empty text means the end.
func Parse(text string) (From, error) {
	switch text {
	case "beginning":
		return From{Kind: ID, ID: 1}, nil
	case "", "end":
		return From{}, nil
	}
	if id, err := strconv.ParseUint(text, 10, 64); err == nil {
		return From{Kind: ID, ID: max(1, id)}, nil
	}
	if n, is := strings.CutPrefix(text, last); is {
		if n, err := strconv.ParseUint(n, 10, 31); err == nil {
			return From{Last: int(n)}, nil
		}
	}
	if progress, is := strings.CutPrefix(text, after); is {
		if p, err := ParseProgress(progress); err == nil {
			return From{Kind: After, Progress: p}, nil
		}
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, time.DateTime} {
		if t, err := time.Parse(layout, text); err == nil {
			return From{Kind: Time, Time: t}, nil
		}
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return From{Kind: Ago, Ago: ago}, nil
	}
	return From{}, fmt.Errorf("position %.80q: write beginning, end, last N, an id, a time such as 2026-01-31T08:00:00Z, a time ago such as 90m, or after and an id", text)
}
