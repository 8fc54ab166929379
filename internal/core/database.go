package core

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/dsn"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// DB is a MySQL or MariaDB database that topics live in. It has a pool of connections for short statements; sessions are separate
// connections. Safe for concurrent use.
type DB struct {
	config *mysql.Config
	pool   *sqlx.DB
	closed atomic.Bool

	versionKnown atomic.Bool // the version of the tables is right, or is ignored

	packets *sql.DB // connections that accept several statements in a packet, for producers

	waiting *waiting.Waiting
	slow    *waiting.Waiting // for queries that may be slow, so that they do not delay the others
	sharing sharing

	kept sync.Map // of Kept
}

// Open prepares access to the database that dataSource names, in the driver's form ("user:pass@tcp(host:3306)/db") or as a URL
// ("mysql://user:pass@host/db"). It does not connect. No error shows the DSN's password.
func Open(dataSource string) (*DB, error) {
	config, err := dsn.Parse(dataSource)
	if err != nil {
		return nil, err
	}
	return OpenConfig(config)
}

// OpenConfig is Open with a configuration of the driver instead of a DSN. It copies the configuration.
func OpenConfig(config *mysql.Config) (*DB, error) {
	if config.DBName == "" {
		return nil, fmt.Errorf("notify: %w: no database in the DSN: end it with /DATABASE", ErrOptions)
	}
	config = config.Clone()
	config.InterpolateParams = true // a statement with arguments is one round trip, not three
	config.MultiStatements = false
	config.ColumnsWithAlias = false                       // the fields of our queries' rows have the columns' names
	params := make(map[string]string, len(config.Params)) // the driver's Clone shares an empty map
	maps.Copy(params, config.Params)
	config.Params = params
	setSession(config.Params)
	if config.ConnectionAttributes == "" {
		config.ConnectionAttributes = "program_name:mqnotify"
	}
	if config.Logger == nil || config.Logger == mysql.NewConfig().Logger {
		// The driver also returns as errors what it would print on stderr.
		config.Logger = &mysql.NopLogger{}
	}
	connector, err := server.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	several := config.Clone()
	several.MultiStatements = true
	if several.ReadTimeout == 0 {
		// After a KILL between two statements of a packet the server sends no further answer.
		several.ReadTimeout = 2 * time.Minute
	}
	for _, name := range []string{"lock_wait_timeout", "innodb_lock_wait_timeout"} { // an answer must come within ReadTimeout
		value := "@@" + name
		for other, own := range several.Params {
			if !strings.EqualFold(other, name) {
				continue
			}
			delete(several.Params, other)
			if !strings.EqualFold(own, "DEFAULT") {
				value = own
			}
		}
		several.Params[name] = fmt.Sprintf("CAST(LEAST(%s, %d) AS UNSIGNED)", value, max(1, int(several.ReadTimeout.Seconds())/2))
	}
	packets, err := server.NewConnector(several)
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	db := &DB{config: config, waiting: waiting.New(config, slog.Default()), slow: waiting.New(config, slog.Default())}
	db.pool = sqlx.NewDb(sql.OpenDB(versionConnector{connector, db}), "mysql")
	db.packets = sql.OpenDB(versionConnector{packets, db})
	db.pool.SetMaxOpenConns(poolConns)
	db.packets.SetMaxOpenConns(packetConns)
	db.packets.SetMaxIdleConns(packetConns)
	return db, nil
}

// Beside opens the database of db again, with a pool of its own, for statements that must not wait for a connection of db: every one of
// these may be in a transaction that waits for such a statement. The caller closes it.
func Beside(db *DB) (*DB, error) { return OpenConfig(db.config) }

// setSession adds session variables that every connection sets, whatever the server's globals and its init_connect say. The
// user's variables stay, except those that messages depend on.
func setSession(params map[string]string) {
	for name := range params {
		switch strings.ToLower(name) {
		case "autocommit", "completion_type", "character_set_client", "character_set_results", "collation_connection", "sql_select_limit",
			"sql_quote_show_create", "sql_big_selects", "sql_safe_updates", "foreign_key_checks":
			delete(params, name)
		}
	}
	params["autocommit"] = "1"               // every statement of the pool is a transaction
	params["completion_type"] = "'NO_CHAIN'" // otherwise the statements after a COMMIT would be in the next transaction
	params["sql_quote_show_create"] = "1"    // MariaDB shows only there that a column is JSON
	params["sql_big_selects"] = "1"          // otherwise a server may refuse to read a long backlog
	params["sql_safe_updates"] = "0"         // MariaDB would refuse a DELETE that only tries the privilege
	params["foreign_key_checks"] = "1"       // guard's claims need theirs
	// Another character set would damage text, and the driver escapes values for UTF-8. A collation of utf8mb4 stays.
	params["character_set_client"], params["character_set_results"] = "utf8mb4", "utf8mb4"
	params["collation_connection"] = "IF(@@collation_connection LIKE 'utf8mb4%', @@collation_connection, " +
		"IF(@@collation_server LIKE 'utf8mb4%', @@collation_server, 'utf8mb4_general_ci'))"
	// Without these the server could cut a statement or a value short, and MariaDB could treat an empty string as NULL. Each version
	// comment addresses one kind of server. LEFT, because '' may be NULL here. CAST, because the literals may have several collations.
	first := ""
	for _, s := range [][2]string{
		{"max_execution_time", "/*!80000 max_execution_time = 0, */ "},
		{"max_statement_time", "/*M! max_statement_time = 0, */ "},
		{"sql_mode", "/*M! sql_mode = CONCAT(REPLACE(CAST(@@sql_mode AS BINARY), 'EMPTY_STRING_IS_NULL', LEFT('x', 0)), ',STRICT_TRANS_TABLES'), */ " +
			"/*!80000 sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES'), */ "},
	} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(params)), func(name string) bool { return strings.EqualFold(name, s[0]) }) {
			first += s[1]
		}
	}
	params[first+"sql_select_limit"] = "9223372036854775807" // no limit
}

// poolConns is a third of the 151 connections that a server accepts by default, so that one busy process leaves enough
// for other applications.
const poolConns = 50

// Pool returns the pool for short statements and for transactions. No advisory lock and no wait for a commit uses it. It has at most
// 50 connections, and callers wait for a free one until their context ends. Pool().SetMaxOpenConns changes the limit; 0 means none.
// A program in which 50 transactions at the same time each need a second connection must raise it. Producers whose topics have no
// wake trigger use up to four connections outside the pool.
//
// The Commit of a transaction that gets no answer fails 5 s after the end of the context with which the transaction began; whether it is
// committed is then unknown. A Rollback that gets no answer fails then too, and at the latest after two minutes; the server rolls back by itself.
func (db *DB) Pool() *sqlx.DB { return db.pool }

// Name returns the database's name.
func (db *DB) Name() string { return db.config.DBName }

// MaxAllowedPacket returns the size of the largest packet that the DB's driver sends, in bytes; 0 means
// that the driver asks the server at every connect.
func MaxAllowedPacket(db *DB) int { return db.config.MaxAllowedPacket }

// Kept returns what the users of the DB share under the key: the value of the first call. create is cheap.
func Kept[T any](db *DB, key string, create func() T) T {
	value, _ := db.kept.LoadOrStore(key, create())
	return value.(T) //nolint:forcetypeassert // a key belongs to one caller
}

// Close closes the pools. Sessions stay open until they are closed themselves.
func (db *DB) Close() error {
	db.closed.Store(true)
	return errors.Join(db.packets.Close(), db.pool.Close())
}
