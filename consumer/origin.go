package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
)

// originWait is how often a reader that finds rows checks whether the table was truncated.
const originWait = time.Minute

// originAge is the minimum age of a table, in seconds. Its time of creation has no fractions, and must differ from that of a table
// that is altered later.
const originAge = 2

// origin distinguishes a table that was truncated from one that was altered, dropped and created again, or restored. TRUNCATE gives
// the table a new number in InnoDB and keeps the time of its creation; ALTER, OPTIMIZE and CREATE also change the time. Numbers of
// different servers are not comparable. TestOrigin shows that MySQL and MariaDB both do so.
type origin struct {
	Server  string
	TableID uint64 `db:"table_id"`
	Created uint64 // in seconds since 1970
}

// truncated reports whether o is the table of before, truncated since.
func (o origin) truncated(before origin) bool {
	return o.Server == before.Server && o.Created == before.Created && o.TableID != before.TableID
}

// readOrigin reads a table's origin. The origin is not known if the account lacks PROCESS, if the table has partitions, is not
// InnoDB's, is younger than originAge or has a name with letters outside ASCII, and if tables come from other servers.
func readOrigin(ctx context.Context, r *rows) (o origin, known bool, err error) {
	caps := r.session.Capabilities()
	name, plain := innodbName(r.table)
	if !plain || caps.WritersElsewhere() {
		return o, false, nil
	}
	id, tables := "@@server_uuid", "INNODB_TABLES"
	if caps.MariaDB {
		id, tables = "CONCAT_WS(':', @@hostname, @@port, @@datadir)", "INNODB_SYS_TABLES"
	}
	err = r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		return conn.GetContext(ctx, &o, "SELECT SHA2("+id+", 256) AS server, i.TABLE_ID AS table_id, UNIX_TIMESTAMP(t.CREATE_TIME) AS created"+
			" FROM information_schema."+tables+" AS i, information_schema.TABLES AS t"+
			" WHERE BINARY i.NAME = ? AND t.TABLE_SCHEMA = ? AND t.TABLE_NAME = ? AND t.CREATE_TIME < NOW() - INTERVAL ? SECOND",
			name, r.table.Schema, r.table.Name, originAge)
	})
	switch {
	case errors.Is(err, sql.ErrNoRows), server.Number(err) != 0 && !server.ConnectionLost(err):
		return o, false, nil
	case err != nil:
		return o, false, fmt.Errorf("consumer: read the table's origin: %w", err)
	}
	return o, true, nil
}

// innodbName returns the table's name in InnoDB's spelling; plain is false if the name has letters outside ASCII.
func innodbName(t *table.Table) (name string, plain bool) {
	var out strings.Builder
	for i, part := range []string{t.Schema, t.Name} {
		if i > 0 {
			out.WriteByte('/')
		}
		for _, c := range part {
			switch {
			case c > 127:
				return "", false
			case c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z':
				out.WriteRune(c)
			default:
				fmt.Fprintf(&out, "@%04x", c)
			}
		}
	}
	return out.String(), true
}

// origins is what a reader knows about its table's origin.
type origins struct {
	wait   time.Duration
	group  string // empty means that nothing is stored
	begins bool   // the group is new or reset: the stored origin does not apply
	known  bool
	before origin
	next   time.Time // no check before this time
	read   time.Time // no read of the origin before this time
}

// checkOrigin is checkLeast, and returns ErrBelowOffset if the table was truncated since the group's offset began, even if its ids
// are larger now.
func (r *reader) checkOrigin(ctx context.Context) error {
	o := r.origins
	o.next = time.Now().Add(o.wait)
	if err := r.checkLeast(ctx); err != nil {
		return err
	}
	began := time.Now()
	if began.Before(o.read) {
		return nil
	}
	r.unchecked = false
	now, known, err := readOrigin(ctx, r.rows)
	if err != nil {
		return err
	}
	// Take at most a thousandth of the time, because the server reads the numbers of all its tables; but read the origin in one of
	// a thousand checks.
	o.read = time.Now().Add(1000 * min(time.Since(began), o.wait))
	if !known && !o.begins {
		return nil
	}
	if !o.known && !o.begins {
		if err := o.load(ctx, r.rows); err != nil {
			return err
		}
	}
	read := r.wm.settled > 0 || len(r.wm.seen.Spans) > 0
	if o.known && !o.begins && read && now.truncated(o.before) {
		return fmt.Errorf("consumer: %s was truncated after its ids up to %d were read: start again with --reset --from beginning (Options.Reset and From): %w",
			r.rows.table, r.wm.settled, ErrBelowOffset)
	}
	if o.known && !o.begins && o.before == now {
		return nil
	}
	o.before, o.known, o.begins = now, known, false
	return o.save(ctx, r.rows)
}

func (o *origins) load(ctx context.Context, r *rows) error {
	if o.group == "" {
		return nil
	}
	err := r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		return conn.GetContext(ctx, &o.before, "SELECT server, table_id, created FROM "+schema.OriginTable+" WHERE topic = ? AND group_name = ?",
			r.table.Name, o.group)
	})
	o.known = err == nil && o.before.TableID > 0 // 0 means that the origin was not known when the group began
	return o.kept(err)
}

func (o *origins) save(ctx context.Context, r *rows) error {
	if o.group == "" {
		return nil
	}
	return o.kept(r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		_, err := conn.ExecContext(ctx, "INSERT INTO "+schema.OriginTable+" (topic, group_name, server, table_id, created) VALUES (?, ?, ?, ?, ?)"+
			" ON DUPLICATE KEY UPDATE server = VALUES(server), table_id = VALUES(table_id), created = VALUES(created)",
			r.table.Name, o.group, o.before.Server, o.before.TableID, o.before.Created)
		return err
	}))
}

// kept returns nil for an error that only means that the origin can't be stored. It is then known as long as the consumer runs.
func (o *origins) kept(err error) error {
	if err == nil || errors.Is(err, sql.ErrNoRows) || server.NoPrivilege(err) || server.Is(err, server.ErrNoSuchTable) {
		return nil
	}
	return fmt.Errorf("consumer: keep the table's origin: %w", err)
}
