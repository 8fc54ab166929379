package guard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/notify"
)

// innodb is the engine that has transactions and row locks.
const innodb = "InnoDB"

// column is a key column of a table of the user.
type column struct {
	integral bool   // otherwise its values are strings of characters or bytes, or are written as strings
	table    string // as the server writes it, which may be in another case
	engine   string // of the table

	statementLog bool // of the server: see server.Capabilities
}

// transactional refuses a table without transactions. There, work of more than one
// statement excludes no other session and is not rolled back.
func (c *column) transactional() error {
	if strings.EqualFold(c.engine, innodb) {
		return nil
	}
	table := ident.Quote(c.table)
	return wrongf("table %s has the engine %s, which locks no rows and has no transactions: ALTER TABLE %s ENGINE=InnoDB", table, c.engine, table)
}

// describe reads a table's definition over q. The key must be unique by
// itself. The other columns, "" for none, must exist and be nullable.
func describe(ctx context.Context, q notify.Tx, database, table, key string, nullable ...string) (*column, error) {
	c, err := describeKey(ctx, q, database, table, key)
	if err != nil {
		return nil, err
	}
	for _, name := range nullable {
		if name == "" {
			continue
		}
		_, null, err := columnType(ctx, q, database, table, name)
		if err != nil {
			return nil, err
		}
		if !null {
			return nil, wrongf("column %s of %s is NOT NULL: make it nullable, because NULL means that no caller got through yet", ident.Quote(name), ident.Quote(table))
		}
	}
	return c, nil
}

func describeKey(ctx context.Context, q notify.Tx, database, table, key string) (*column, error) {
	typ, _, err := columnType(ctx, q, database, table, key)
	if err != nil {
		return nil, err
	}
	var c column
	var unique bool
	// A unique index on a prefix of the column also makes the whole column unique.
	err = q.QueryRowContext(ctx, `SELECT @@log_bin AND @@binlog_format = 'STATEMENT', TABLE_NAME, COALESCE(ENGINE, 'no engine'), EXISTS (
		SELECT 1 FROM information_schema.STATISTICS
		WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND NON_UNIQUE = 0
		GROUP BY INDEX_NAME HAVING COUNT(*) = 1 AND MAX(COLUMN_NAME) = ?)
		FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?`,
		database, table, key, database, table).Scan(&c.statementLog, &c.table, &c.engine, &unique)
	if err != nil {
		return nil, fmt.Errorf("read the keys of %s: %w", ident.Quote(table), err)
	}
	if !unique {
		return nil, wrongf("column %s of %s is not a unique key by itself: one statement could find several rows, or lock all of them; "+
			"add a UNIQUE KEY, or name the primary key", ident.Quote(key), ident.Quote(table))
	}
	switch typ {
	case "tinyint", "smallint", "mediumint", "int", "bigint":
		c.integral = true
		return &c, nil
	case "char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum",
		"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "uuid", "date", "datetime", "timestamp":
		return &c, nil
	}
	return nil, wrongf("column %s of %s is of type %s: name an integer or a string as the key", ident.Quote(key), ident.Quote(table), typ)
}

func columnType(ctx context.Context, q notify.Tx, database, table, name string) (typ string, null bool, err error) {
	// The server ignores the case of a column's name, here as in other statements.
	err = q.QueryRowContext(ctx, `SELECT DATA_TYPE, IS_NULLABLE = 'YES' FROM information_schema.COLUMNS
		WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND COLUMN_NAME = ?`, database, table, name).Scan(&typ, &null)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, wrongf("there is no column %s in a table %s of database %s that this account may use: check the names, or create it",
			ident.Quote(name), ident.Quote(table), ident.Quote(database))
	}
	if err != nil {
		return "", false, fmt.Errorf("read the columns of %s: %w", ident.Quote(table), err)
	}
	return strings.ToLower(typ), null, nil
}

// argument converts a key to the type that the column compares without a conversion, because a server
// evaluates 'abc' = 0 and '12abc' = 12 as true.
func (c *column) argument(key any) (any, error) {
	switch k := key.(type) {
	case string:
		if !c.integral {
			return k, nil
		}
		if n, err := strconv.ParseInt(k, 10, 64); err == nil {
			return n, nil
		}
		if n, err := strconv.ParseUint(k, 10, 64); err == nil {
			return n, nil
		}
		return nil, wrongf("key %s: the column holds integers", shown(k))
	case []byte:
		if !c.integral {
			return k, nil
		}
		return nil, wrongf("a key of bytes: the column holds integers")
	case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		if c.integral {
			return k, nil
		}
		return nil, wrongf("key %d: the column holds strings, so give it as one", k)
	}
	return nil, wrongf("a key of type %T: give a string or an integer", key)
}
