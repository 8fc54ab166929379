package notify

import (
	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/core"
)

// DB is a MySQL or MariaDB database that topics live in. It has a pool of connections for short statements. The packages of
// mqnotify also open sessions of their own outside the pool when they need them. Safe for concurrent use. Its methods are
//
//   - Pool() *sqlx.DB, the pool for short statements and for transactions. It has at most 50 connections, and callers wait
//     for a free one until their context ends. Pool().SetMaxOpenConns changes the limit; 0 means none. A program in which 50
//     transactions at the same time each need a second connection must raise it. Producers whose topics have no wake trigger
//     use up to four connections outside the pool.
//   - Name() string, the database's name.
//   - Wake(ctx, table) error, which wakes the processes that listen to the table. Call it after a commit if the table has
//     no wake trigger. If the database has no procedure mqnotify_wake, Wake does nothing, and the processes poll.
//   - Close() error, which closes the pools. Sessions of producers, consumers and the like stay open until these are closed.
type DB = core.DB

// Open prepares access to the database that dataSource names, in the driver's form ("user:pass@tcp(host:3306)/db") or as a URL
// ("mysql://user:pass@host/db"). It does not connect. No error shows the DSN's password. A DSN without a database is an
// ErrOptions, because topics, offsets and lock names belong to a database.
func Open(dataSource string) (*DB, error) { return core.Open(dataSource) }

// OpenConfig is Open with a configuration of the driver instead of a DSN. It copies the configuration. Unless that sets sql_mode, all
// connections have STRICT_TRANS_TABLES besides the server's modes, so that no value is cut short.
func OpenConfig(config *mysql.Config) (*DB, error) { return core.OpenConfig(config) }
