package doctor

import (
	"context"

	"github.com/mqnotify/mqnotify/internal/wake"
)

// wakes looks at the wake triggers of the table. Tables without one are the mode check's.
func wakes(ctx context.Context, t *topic) (results []Result, err error) {
	states, _, err := wake.OfTable(ctx, t.db, t.table.Name)
	if err != nil {
		return nil, err
	}
	for _, s := range states {
		remedy := "mqnotify wake install " + t.table.Name + " --on " + s.Event
		switch {
		case s.WritesFail:
			results = append(results, problem(remedy, "the wake trigger %s: %s", s.Trigger, s.Problem))
		case s.Problem != "":
			results = append(results, warning(remedy, "the wake trigger %s wakes no listener: %s", s.Trigger, s.Problem))
		}
	}
	return results, nil
}
