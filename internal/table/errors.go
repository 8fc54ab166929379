package table

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// The errors about a table. An error's text names the object and the
// remedy; use errors.Is to find out which of these it is.
var (
	ErrNoTable  = errors.New("no such table")
	ErrNotTopic = errors.New("the table can't be used this way") // each of those below is one
	ErrView     = failf(ErrNotTopic, "a view, not a table")
	ErrNoKey    = failf(ErrNotTopic, "no integer key")
	ErrNoColumn = failf(ErrNotTopic, "no such column")
)

// failure is an error of a kind, with a text of its own.
type failure struct {
	kind error
	text string
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.kind }

func failf(kind error, format string, args ...any) error {
	return &failure{kind: kind, text: fmt.Sprintf(format, args...)}
}

// didYouMean returns a hint with the names that are similar to the one that was not found, or
// an empty text.
func didYouMean(name string, names []string) string {
	if near := nearest(name, names); len(near) > 0 {
		return " (did you mean " + list(near) + "?)"
	}
	return ""
}

// list returns quoted names, at most as many as a message should have.
func list(names []string) string {
	const most = 30
	var b strings.Builder
	for i, name := range names {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(names)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(ident.Quote(name))
	}
	return b.String()
}

// nearest returns at most three names that differ from name by the fewest letters, ignoring case, and by at most two.
func nearest(name string, names []string) []string {
	wanted := []rune(strings.ToLower(name))
	var near []string
	for allowed := 0; allowed <= min(2, len(wanted)/2) && len(near) == 0; allowed++ {
		for _, candidate := range names {
			if distance(wanted, []rune(strings.ToLower(candidate))) == allowed && len(near) < 3 {
				near = append(near, candidate)
			}
		}
	}
	return near
}

// distance returns the number of letters to insert, remove or change (Levenshtein).
func distance(a, b []rune) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j := range b {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
