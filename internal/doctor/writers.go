package doctor

import (
	"context"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/schema"
)

// writers reports how a consumer knows the transactions that may still fill a gap in the ids, by trying it as the consumer does.
func writers(ctx context.Context, t *topic) ([]Result, error) {
	way, grace, err := t.ask(ctx, "")
	if err != nil {
		return nil, err
	}
	t.way = way
	late := "no row that commits late is lost"
	if key, err := t.table.KeyColumn(""); err == nil && !key.AutoIncrement {
		late = "this does not help with a key that is not AUTO_INCREMENT"
	}
	besides := ""
	if grace > 0 {
		late = "no row of this server's own transactions that commits late is lost"
		besides = "; for transactions of other servers a gap stays open for " + grace.String() + " (--grace), and a row that arrives later is LOST"
	}
	switch way {
	case "metadata-locks":
		return []Result{ok("open writers are known exactly, by performance_schema.metadata_locks: %s%s", late, besides)}, nil
	case "innodb-trx", "open-writers":
		by := "information_schema.INNODB_TRX"
		if way == "open-writers" {
			by = "the procedure " + schema.OpenWritersRoutine
		}
		note := ""
		if !t.caps.MariaDB { // MySQL has a better way
			_, _, err := t.ask(ctx, "metadata-locks")
			if t.lost(err) {
				return nil, err
			}
			if err != nil {
				note = "; metadata_locks would (" + plain(err) + ")"
			}
		}
		return []Result{ok("open writers are known by %s: %s; "+
			"it does not show which tables a transaction writes to%s%s", by, late, note, besides)}, nil
	}
	remedy := "GRANT EXECUTE ON PROCEDURE " + schema.OpenWritersRoutine + " (mqnotify init makes it), or PROCESS ON *.*, to the account"
	if !t.caps.MariaDB {
		remedy = "GRANT SELECT ON performance_schema.metadata_locks and .threads, or EXECUTE ON PROCEDURE " + schema.OpenWritersRoutine + " (mqnotify init makes it), or PROCESS ON *.*, to the account"
	}
	return []Result{warning(remedy, "this account can't see open transactions: a gap in the ids counts as settled after --grace (%v), "+
		"and a transaction that stays open for longer may LOSE its rows", grace)}, nil
}

// ask lets a consumer of the topic try one way to know the writers; "" is the best that works.
func (t *topic) ask(ctx context.Context, way string) (string, time.Duration, error) {
	c, err := consumer.New(t.db, t.table.Name, consumer.Options{Writers: way})
	if err != nil {
		return "", 0, err
	}
	return c.Writers(ctx)
}
