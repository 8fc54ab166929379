package table

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/mqnotify/mqnotify/internal/server"
)

// NextAutoIncrement returns the id that the server currently assigns next.
// It distinguishes an emptied table, whose counter stays, from a truncated or a new one,
// whose counter restarts. known is false if the table has no AUTO_INCREMENT column.
// The error is ErrNoTable if the table is gone.
//
// It needs one session, not a pool: MySQL answers from a cache that may be a day old
// unless a variable of the session is set. NextAutoIncrement sets it and leaves it so.
func NextAutoIncrement(ctx context.Context, conn *sql.Conn, t *Table) (next uint64, known bool, err error) {
	_, err = conn.ExecContext(ctx, "SET SESSION information_schema_stats_expiry = 0")
	if err != nil && !server.Is(err, server.ErrUnknownVariable) { // a server without that cache
		return 0, false, fmt.Errorf("table: read next id of %s: %w", t, err)
	}
	var counter sql.Null[uint64]
	found := false
	err = each(ctx, conn, func(rows *sql.Rows) error {
		found = true
		return rows.Scan(&counter)
	}, `SELECT AUTO_INCREMENT AS a FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?`,
		t.Schema, t.Name)
	if err != nil {
		return 0, false, fmt.Errorf("table: read next id of %s: %w", t, err)
	}
	if !found {
		return 0, false, noTable(ctx, conn, t.Schema, t.Name)
	}
	if !slices.ContainsFunc(t.Columns, func(c Column) bool { return c.AutoIncrement }) {
		return 0, false, nil
	}
	if !counter.Valid {
		return 1, true, nil // MySQL returns NULL until it has assigned the first id
	}
	return counter.V, true, nil
}
