package doctor

import (
	"context"
	"log/slog"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/notify"
)

// mode tells how a consumer in mode auto will wait: the consumer's own waiter tries,
// and takes part in the topic's gate for a moment.
func mode(ctx context.Context, t *topic) ([]Result, error) {
	key, err := t.table.KeyColumn("")
	if err != nil {
		return nil, nil // nothing can be consumed, which another check says
	}
	refusal, err := t.try(ctx, attempts{"consume", []string{"SELECT 1 FROM " + ident.Quote(t.table.Name) + " WHERE FALSE"}})
	if err != nil || refusal != nil {
		return nil, err
	}
	auto := notify.NewAuto(t.db, t.session, t.table.Name, notify.LargestID(t.table.Name, key.Name),
		notify.AutoOptions{Logger: slog.New(slog.DiscardHandler)})
	defer func() { _ = auto.Close() }() // it leaves the session to the other checks
	if _, err := auto.Head(ctx); err != nil {
		return nil, err
	}
	switch mode, why := auto.Mode(); mode {
	case "trigger":
		return []Result{ok("consume waits by the table's wake trigger: it sleeps on the server, and a row that any program inserts wakes it at its commit")}, nil
	case "gate":
		others := "within a second (at once after mqnotify wake install " + t.table.Name + ")"
		if t.caps.GTID {
			others = "at once too, since gtid_mode is on"
		}
		return []Result{ok("consume waits by the gate: it sleeps on the server, and a producer's message wakes it at once; "+
			"a row that another program inserts is seen %s", others)}, nil
	case "gtid":
		return []Result{ok("consume waits by GTIDs: it sleeps on the server until something commits there (%s)", why)}, nil
	default:
		return []Result{warning(t.modeRemedy(), "consume polls, each 10 ms to 1 s (%s)", why)}, nil
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
