package doctor

import (
	"context"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// exam is an examination of a server, and the subject of its checks.
type exam struct {
	db      *notify.DB
	options Options
	session *core.Session // made by the first check
	caps    *server.Capabilities

	initialised bool // the database has the tables of `mqnotify init`, as far as the account can see
}

// All checks whose answers are wrong through a multiplexing proxy come after "session", which finds the proxy.
var serverChecks = []check[*exam]{
	{"connection", connection},
	{"server", version},
	{"writes", writes},
	{"cluster", cluster},
	{"delay", delay},
	{"gtid", gtid},
	{"timeouts", timeouts},
	{"packet", packet},
	{"text", text},
	{"clock", clock},
	{"session", sameSession},
	{"locks", locks},
	{"state", state},
	{"procedures", procedures},
	{"triggers", ownWakes},
}

// open makes a session for a few checks.
func (e *exam) open(ctx context.Context) (*core.Session, error) {
	return core.NewSession(ctx, e.db, core.SessionOptions{IdleTimeout: max(time.Minute, 2*e.options.Timeout)})
}

func (e *exam) close() {
	if e.session != nil {
		_ = e.session.Close() // it holds no lock and no transaction
	}
}

// get reads the only row of a query.
func (e *exam) get(ctx context.Context, into any, query string, args ...any) error {
	return e.session.Do(ctx, func(conn *sqlx.Conn) error { return conn.GetContext(ctx, into, query, args...) })
}

// all reads the rows of a query.
func (e *exam) all(ctx context.Context, into any, query string, args ...any) error {
	return e.session.Do(ctx, func(conn *sqlx.Conn) error { return conn.SelectContext(ctx, into, query, args...) })
}

func (e *exam) exec(ctx context.Context, statement string) error {
	return e.session.Do(ctx, func(conn *sqlx.Conn) error {
		_, err := conn.ExecContext(ctx, statement)
		return err
	})
}

// maps reads the rows of a statement whose columns depend on the server.
func (e *exam) maps(ctx context.Context, query string) (all []map[string]any, err error) {
	err = e.session.Do(ctx, func(conn *sqlx.Conn) error {
		rows, err := conn.QueryxContext(ctx, query)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			row := make(map[string]any)
			if err := rows.MapScan(row); err != nil {
				return err
			}
			all = append(all, row)
		}
		return rows.Err()
	})
	return all, err
}
