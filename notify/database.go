package notify

import (
	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/core"
)

// DB is a MySQL or MariaDB database that topics live in: a pool of connections for short statements, and pinned sessions
// next to it, which the packages of mqnotify open when they need them. Safe for concurrent use. Its methods are
//
//   - Pool() *sqlx.DB, the pool for short statements and for transactions. It has at most 50 connections, and callers wait
//     for a free one until their context ends; Pool().SetMaxOpenConns changes that, 0 means no limit. A program in which 50
//     transactions at the same time each need a second connection must raise it. Producers whose topics have no wake trigger
//     use up to four connections outside the pool.
//   - Name() string, the database's name.
//   - Wake(ctx, table) error, which wakes the processes that listen to the table. Call it after a commit, where the table has
//     no wake trigger. Without the procedure mqnotify_wake in the database it does nothing: the processes poll.
//   - Close() error, which closes the pools. What producers, consumers and the like have opened lives on until these end.
type DB = core.DB

// Open prepares access to the database that dataSource names, in the driver's form
// ("user:pass@tcp(host:3306)/db") or as a URL ("mysql://user:pass@host/db"). It
// does not connect. No error ever shows the DSN's password. A DSN that names no database is an ErrOptions:
// topics, offsets and lock names belong to one.
func Open(dataSource string) (*DB, error) { return core.Open(dataSource) }

// OpenConfig is Open for a configuration of the driver, which it copies.
func OpenConfig(config *mysql.Config) (*DB, error) { return core.OpenConfig(config) }
