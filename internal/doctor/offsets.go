package doctor

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
)

// offsets finds groups whose offset is at or above the table's next id, because the table was made again, or was restored from an older
// backup than the offsets. Their consumers refuse to begin. If the table grows past the offset, they begin and skip rows.
func offsets(ctx context.Context, t *topic) (results []Result, err error) {
	var next uint64
	var known bool
	err = t.session.Do(ctx, func(conn *sqlx.Conn) (err error) {
		next, known, err = table.NextAutoIncrement(ctx, conn.Conn, t.table)
		return err
	})
	if err != nil {
		return nil, err
	}
	var groups []struct {
		Name    string `db:"group_name"`
		Settled uint64
	}
	err = t.all(ctx, &groups, "SELECT group_name, settled FROM "+schema.OffsetTable+" WHERE topic = ? ORDER BY group_name", t.table.Name)
	switch {
	case !known:
		return []Result{ok("the offsets can't be compared with the table, which has no AUTO_INCREMENT column")}, nil
	case server.NoPrivilege(err), server.Is(err, server.ErrNoSuchTable):
		return []Result{ok("the table has no offsets, or none that this account may see")}, nil
	case err != nil:
		return nil, err
	}
	for _, g := range groups {
		if g.Settled >= next {
			results = append(results, warning("mqnotify consume "+t.table.Name+" --group "+g.Name+" --reset --from beginning",
				"group %q has done all ids up to %d, and the table's next id is %d, as after restoring an older backup: the group's consumer refuses to begin",
				g.Name, g.Settled, next))
		}
	}
	if len(results) == 0 {
		results = append(results, ok("no group is ahead of the table"))
	}
	return results, nil
}
