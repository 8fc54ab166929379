package waiting_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// search walks through all states. It returns their number, and the path to a late row if there is one.
func search(r rules, b budget) (states int, way []state) {
	type entry struct {
		s    state
		from int32
	}
	seen := map[state]struct{}{first(r, b): {}}
	all := []entry{{first(r, b), none}}
	for at := 0; at < len(all); at++ {
		s := all[at].s
		moves := s.steps(r, func(n state) {
			if _, ok := seen[n]; !ok {
				seen[n] = struct{}{}
				all = append(all, entry{n, int32(at)})
			}
		})
		if !moves && s.late() {
			for from := int32(at); from != none; from = all[from].from {
				way = append(way, all[from].s)
			}
			slices.Reverse(way)
			break
		}
	}
	return len(all), way
}

func TestModel(t *testing.T) {
	mysqltest.Once(t)
	few := []budget{{followers: 1}}
	some := []budget{{followers: 1, deaths: 1}, {followers: 1, timeouts: 1}, {followers: 1, slots: 1}, {followers: 2}}
	many := []budget{{followers: 1, timeouts: 1, slots: 1}, {followers: 2, slots: 1}}
	for _, b := range mysqltest.Size(few, some, append(some, many...)) {
		t.Run(fmt.Sprintf("%+v", b), func(t *testing.T) {
			t.Parallel()
			states, way := search(rules{}, b)
			if way != nil {
				t.Fatalf("a late row:\n%s", shown(way))
			}
			t.Logf("no late row in %d states", states)
		})
	}
	for name, without := range map[string]struct {
		rules
		budget
	}{
		"the wake lock":               {rules{noWakeLock: true}, few[0]},
		"the check of the phase":      {rules{noPhaseCheck: true}, few[0]},
		"the order of the checks":     {rules{readFirst: true}, few[0]},
		"the repeated broadcast":      {rules{noRepeat: true}, budget{followers: 1, slots: 1}},
		"start and election as hints": {rules{silentStart: true}, few[0]},
		"a rest as long as a slot":    {rules{shortRest: true}, few[0]},
	} {
		t.Run("without "+name, func(t *testing.T) {
			t.Parallel()
			states, way := search(without.rules, without.budget)
			if way == nil {
				t.Fatalf("no late row in %d states", states)
			}
			t.Logf("a late row after %d steps, found in %d states", len(way)-1, states)
		})
	}
}

// shown returns the path as text, a state on each line.
func shown(way []state) string {
	var text strings.Builder
	for _, s := range way {
		fmt.Fprintf(&text, "%+v\n", s)
	}
	return text.String()
}
