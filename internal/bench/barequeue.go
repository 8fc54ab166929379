package bench

import (
	"context"
	"database/sql"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/server"
)

var taskPayload = []byte("a short payload")

// bareQueue is a table from which the benchmark claims rows by plain statements: select, update, commit;
// delete.
type bareQueue struct {
	b     *bench
	table string
	skip  string
	conns []*sql.Conn
}

// bareQueue creates the table, and connections that claim from it.
func (b *bench) bareQueue(ctx context.Context) (*bareQueue, error) {
	q := &bareQueue{b: b, table: ident.Quote(b.topic + "_bare"), skip: " SKIP LOCKED"}
	if _, err := b.db.Pool().ExecContext(ctx, "CREATE TABLE "+q.table+" (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY,"+
		" state TINYINT NOT NULL DEFAULT 0, payload LONGBLOB NOT NULL, KEY (state, id)) ENGINE=InnoDB"); err != nil {
		return nil, err
	}
	b.atEnd(func() error {
		_, err := b.db.Pool().ExecContext(context.WithoutCancel(ctx), "DROP TABLE "+q.table)
		return err
	})
	for range workers {
		conn, err := b.db.Pool().DB.Conn(ctx)
		if err != nil {
			return nil, err
		}
		b.atEnd(conn.Close)
		if _, err := conn.ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
			return nil, err
		}
		q.conns = append(q.conns, conn)
	}
	if _, err := q.claim(ctx, q.conns[0], 1); server.Is(err, server.ErrParse) {
		q.skip = "" // an old server: the connections wait for each other
	} else if err != nil {
		return nil, err
	}
	return q, nil
}

// enter inserts n rows.
func (q *bareQueue) enter(ctx context.Context, n int) error {
	for entered := 0; entered < n; entered += batch {
		rows := make([]any, min(n-entered, batch))
		for i := range rows {
			rows[i] = taskPayload
		}
		insert := "INSERT INTO " + q.table + " (payload) VALUES " + strings.TrimSuffix(strings.Repeat("(?), ", len(rows)), ", ")
		if _, err := q.b.db.Pool().ExecContext(ctx, insert, rows...); err != nil {
			return err
		}
	}
	return nil
}

// empty claims rows until none is left, at most at rows at a time.
func (q *bareQueue) empty(ctx context.Context, at int) error {
	return atOnce(len(q.conns), func(i int) error {
		for {
			n, err := q.claim(ctx, q.conns[i], at)
			if server.Is(err, server.ErrDeadlock) {
				continue // rolled back
			}
			if err != nil || n == 0 {
				return err
			}
		}
	})
}

// claim claims at most at rows, and deletes them.
func (q *bareQueue) claim(ctx context.Context, conn *sql.Conn, at int) (int, error) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	ids, err := q.ids(ctx, tx, at)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	in := " WHERE id IN (" + strings.Join(ids, ",") + ")"
	if _, err := tx.ExecContext(ctx, "UPDATE "+q.table+" SET state = 1"+in); err != nil {
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	for {
		if _, err = conn.ExecContext(ctx, "DELETE FROM "+q.table+in); !server.Is(err, server.ErrDeadlock) {
			return len(ids), err
		}
	}
}

func (q *bareQueue) ids(ctx context.Context, tx *sql.Tx, at int) (ids []string, err error) {
	rows, err := tx.QueryContext(ctx, "SELECT id, payload FROM "+q.table+" WHERE state = 0 ORDER BY id LIMIT ? FOR UPDATE"+q.skip, at)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		var payload []byte
		if err := rows.Scan(&id, &payload); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}
