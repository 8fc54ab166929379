package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/wake"
)

// ownWakes checks the wake triggers on mqnotify's own tables, which `mqnotify init` makes. A restored database may lack them, or their
// account may not exist.
func ownWakes(ctx context.Context, e *exam) (results []Result, err error) {
	if !e.initialised {
		return nil, nil
	}
	states, err := wake.Status(ctx, e.db)
	if err != nil {
		return nil, err
	}
	all, err := e.seesAll(ctx, "TRIGGER")
	if err != nil {
		return nil, err
	}
	own := []string{schema.NotificationTable, schema.TaskTable, schema.RingTable}
	var missing []string
	for _, table := range own {
		i := slices.IndexFunc(states, func(s wake.State) bool { return s.Table == table })
		switch {
		case i < 0:
			missing = append(missing, table)
		case states[i].WritesFail:
			results = append(results, problem("mqnotify init", "the wake trigger %s: %s", states[i].Trigger, states[i].Problem))
		case states[i].Problem != "":
			results = append(results, warning("mqnotify init", "the wake trigger %s wakes no listener: %s", states[i].Trigger, states[i].Problem))
		}
	}
	switch {
	case all && len(missing) > 0:
		results = append(results, warning("mqnotify init", "no wake trigger on %s: rows of other programs are found by polling, up to a second later",
			strings.Join(missing, ", ")))
	case len(results) > 0:
	case all:
		results = append(results, ok("the wake triggers of mqnotify's own tables work"))
	default:
		results = append(results, ok("this account sees %d of the %d wake triggers of mqnotify's own tables", len(own)-len(missing), len(own)))
	}
	return results, nil
}

// wakes checks the wake triggers of the table.
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
