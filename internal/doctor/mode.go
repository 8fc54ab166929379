package doctor

import (
	"context"
	"log/slog"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// mode reports how a consumer in mode auto waits, by trying the consumer's own waiter.
func mode(ctx context.Context, t *topic) ([]Result, error) {
	key, err := t.table.KeyColumn("")
	if err != nil {
		return nil, nil // the check key reports that the table can't be consumed
	}
	refusal, err := t.try(ctx, attempts{"consume", []string{"SELECT 1 FROM " + ident.Quote(t.table.Name) + " WHERE FALSE"}})
	if err != nil || refusal != nil {
		return nil, err
	}
	auto := core.NewAuto(t.db, core.LargestID(t.table.Name, key.Name), core.AutoOptions{Logger: slog.New(slog.DiscardHandler)})
	defer func() { _ = auto.Close() }() // it has not waited
	if _, err := auto.Head(ctx); err != nil {
		return nil, err
	}
	mode, why := auto.Mode()
	remedy := t.modeRemedy()
	switch {
	case mode == "trigger":
		return []Result{ok("the table's wake trigger wakes consume at the commit of every INSERT by any program")}, nil
	case mode == "gtid", t.caps.GTID: // it begins by polling
		return []Result{ok("every commit on the server wakes consume, by its GTID (%s)", why)}, nil
	case remedy == "" && why == waiting.ErrNoTrigger.Error():
		return []Result{ok("consume polls at least once a second, because the table has no wake trigger that works (mqnotify wake install %s makes one)", t.table.Name)}, nil
	default:
		return []Result{warning(remedy, "consume polls at least once a second (%s)", why)}, nil
	}
}

// modeRemedy returns the remedy for consumers that poll because of the server.
func (t *topic) modeRemedy() string {
	switch {
	case t.caps.ReadOnly:
		return "connect to the primary"
	case t.caps.Galera, t.caps.MultiPrimary:
		return "no row is lost by polling; for a wake-up, keep the topic on a server that alone takes all writes"
	}
	return ""
}
