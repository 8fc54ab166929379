package doctor

import (
	"context"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/schema"
)

// writers tells how a consumer will know the transactions that may still fill a
// gap in the ids: the consumer itself tries.
func writers(ctx context.Context, t *topic) ([]Result, error) {
	way, grace, err := t.ask(ctx, "")
	if err != nil {
		return nil, err
	}
	t.way = way
	late := "no row that commits late is lost"
	if key, err := t.table.KeyColumn(""); err == nil && !key.AutoIncrement {
		late = "that says little about a key that is not AUTO_INCREMENT"
	}
	besides := ""
	if grace > 0 {
		late = "of this server's own transactions no row that commits late is lost"
		besides = "; for those of other servers a gap waits " + grace.String() + " (--grace), and a row that comes later is LOST"
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
		if !t.caps.MariaDB { // where a better way may be had
			_, _, err := t.ask(ctx, "metadata-locks")
			if t.lost(err) {
				return nil, err
			}
			if err != nil {
				note = "; metadata_locks would tell (" + plain(err) + ")"
			}
		}
		return []Result{ok("open writers are known by %s: %s; "+
			"it does not tell which tables a transaction writes to%s%s", by, late, note, besides)}, nil
	}
	remedy := "GRANT EXECUTE ON PROCEDURE " + schema.OpenWritersRoutine + " (mqnotify init makes it), or PROCESS ON *.*, to the account"
	if !t.caps.MariaDB {
		remedy = "GRANT SELECT ON performance_schema.metadata_locks and .threads, or EXECUTE ON PROCEDURE " + schema.OpenWritersRoutine + " (mqnotify init makes it), or PROCESS ON *.*, to the account"
	}
	return []Result{warning(remedy, "this account can't see open transactions: a gap in the ids counts as settled after --grace (%v), "+
		"and a transaction that stays open for longer may LOSE its rows", grace)}, nil
}

// ask has a consumer of the topic try a way.
func (t *topic) ask(ctx context.Context, way string) (string, time.Duration, error) {
	c, err := consumer.New(t.db, t.table.Name, consumer.Options{Writers: way})
	if err != nil {
		return "", 0, err
	}
	return c.Writers(ctx)
}
