package doctor

import (
	"context"
	"log/slog"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// mode reports how a consumer in mode auto will wait: the consumer's own waiter tries it.
func mode(ctx context.Context, t *topic) ([]Result, error) {
	key, err := t.table.KeyColumn("")
	if err != nil {
		return nil, nil // nothing can be consumed, which another check says
	}
	refusal, err := t.try(ctx, attempts{"consume", []string{"SELECT 1 FROM " + ident.Quote(t.table.Name) + " WHERE FALSE"}})
	if err != nil || refusal != nil {
		return nil, err
	}
	auto := core.NewAuto(t.db, core.LargestID(t.table.Name, key.Name), core.AutoOptions{Logger: slog.New(slog.DiscardHandler)})
	defer func() { _ = auto.Close() }() // nothing was waited for
	if _, err := auto.Head(ctx); err != nil {
		return nil, err
	}
	mode, why := auto.Mode()
	remedy := t.modeRemedy()
	switch {
	case mode == "trigger":
		return []Result{ok("consume waits by the table's wake trigger: a row that any program inserts wakes it at its commit")}, nil
	case mode == "gtid", t.caps.GTID: // at first it polls
		return []Result{ok("consume waits by GTIDs: every commit on the server wakes it (%s)", why)}, nil
	case remedy == "" && why == waiting.ErrNoTrigger.Error():
		return []Result{ok("consume polls, at most 1 s apart, since no wake trigger of the table works (mqnotify wake install %s makes one)", t.table.Name)}, nil
	default:
		return []Result{warning(remedy, "consume polls, at most 1 s apart (%s)", why)}, nil
	}
}

// modeRemedy is what would let consumers wait in a better way than by polling.
func (t *topic) modeRemedy() string {
	switch {
	case t.caps.ReadOnly:
		return "connect to the primary"
	case t.caps.Galera, t.caps.MultiPrimary:
		return "nothing is lost by it; to be woken sooner, keep the topic on a server that takes all writes alone"
	}
	return ""
}
