package doctor

import (
	"context"
	"strings"

	"github.com/mqnotify/mqnotify/internal/wake"
)

// wakes looks at the wake triggers of the table.
func wakes(ctx context.Context, t *topic) (results []Result, err error) {
	states, _, err := wake.OfTable(ctx, t.db, t.table.Name)
	if err != nil {
		return nil, err
	}
	var works []string
	for _, s := range states {
		remedy := "mqnotify wake install " + t.table.Name + " --on " + s.Event
		switch {
		case s.WritesFail:
			results = append(results, problem(remedy, "the wake trigger %s: %s", s.Trigger, s.Problem))
		case s.Problem != "":
			results = append(results, warning(remedy, "the wake trigger %s wakes no listener: %s", s.Trigger, s.Problem))
		default:
			works = append(works, s.Event)
		}
	}
	switch {
	case len(states) == 0:
		results = append(results, ok("no wake trigger, or none that this account may see (mqnotify wake install makes one)"))
	case len(works) > 0:
		results = append(results, ok("the wake trigger works, at every %s", strings.Join(works, ", ")))
	}
	return results, nil
}
