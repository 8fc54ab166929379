package core

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
)

// ErrVersion means that the tables of mqnotify in the database have another version than this program knows.
var ErrVersion = errors.New("the tables of mqnotify have another version")

// IgnoreVersion lets the DB connect whatever version the tables have. It is for code that upgrades, removes or examines the
// tables. Call it before the DB is used.
func IgnoreVersion(db *DB) { db.versionKnown.Store(true) }

// A versionConnector refuses connections to a database whose tables have another version. Every new connection reads the
// version until it was right once. A program therefore refuses wrong tables when it starts, but continues if another program upgrades
// them while it runs.
type versionConnector struct {
	driver.Connector
	db *DB
}

func (c versionConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil || c.db.versionKnown.Load() {
		return conn, err //nolint:wrapcheck // the connector's own
	}
	if err := c.db.checkVersion(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// checkVersion returns an ErrVersion if the tables have another version. A database without tables of mqnotify is no error,
// because a consumer without a group needs none. An account that may not read the version is accepted.
func (db *DB) checkVersion(ctx context.Context, conn driver.Conn) error {
	has, err := readVersion(ctx, conn)
	switch {
	case server.NoPrivilege(err):
		db.versionKnown.Store(true)
		return nil
	case server.Number(err) != 0 && !server.ConnectionLost(err): // the table does not exist, or the server serves no tables now
		return nil
	case err != nil:
		return fmt.Errorf("read the version of the tables of mqnotify: %w", err)
	case !has.Valid: // `mqnotify init` runs just now
		return nil
	}
	newest := schema.Newest()
	switch {
	case has.V < int64(newest):
		return fmt.Errorf("%w: those in %s have version %d, and this program needs version %d: run `mqnotify init`",
			ErrVersion, ident.Quote(db.Name()), has.V, newest)
	case has.V > int64(newest):
		return fmt.Errorf("%w: those in %s have version %d, and this program knows version %d: update this program",
			ErrVersion, ident.Quote(db.Name()), has.V, newest)
	}
	db.versionKnown.Store(true)
	return nil
}

func readVersion(ctx context.Context, conn driver.Conn) (version sql.Null[int64], err error) {
	queryer, is := conn.(driver.QueryerContext)
	if !is {
		return version, fmt.Errorf("%T runs no queries", conn)
	}
	rows, err := queryer.QueryContext(ctx, "SELECT MAX(version) FROM "+schema.VersionTable, nil)
	if err != nil {
		return version, err //nolint:wrapcheck // the caller wraps it
	}
	defer func() { _ = rows.Close() }()
	values := make([]driver.Value, 1)
	if err := rows.Next(values); err != nil {
		return version, err //nolint:wrapcheck // the caller wraps it
	}
	return version, version.Scan(values[0]) //nolint:wrapcheck // the caller wraps it
}
