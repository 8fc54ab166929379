package doctor

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/table"
)

// topic is the subject of the checks of one table.
type topic struct {
	*exam
	name  string
	table *table.Table // set by the check table
	way   string       // how open writers are known; set by the check writers
}

var topicChecks = []check[*topic]{
	{"table", describe},
	{"engine", engine},
	{"key", key},
	{"privileges", privileges},
	{"offsets", offsets},
	{"flag", flagTriggers},
	{"writers", writers},
	{"transactions", transactions},
	{"wake", wakes},
	{"mode", mode},
}

// describe finds the table, which the other checks need.
func describe(ctx context.Context, t *topic) ([]Result, error) {
	err := t.session.Do(ctx, func(conn *sqlx.Conn) (err error) {
		t.table, err = table.Describe(ctx, conn, t.db.Name(), t.name)
		return err
	})
	var invalid *ident.InvalidError
	switch {
	case errors.Is(err, table.ErrNoTable):
		return []Result{problem("mqnotify init makes a message table; any table with an increasing integer key is a topic too", "%v", err)}, errEnough
	case errors.As(err, &invalid):
		return []Result{problem("", "%v", invalid)}, errEnough
	case err != nil:
		return nil, err
	case t.table.IsView:
		return []Result{problem("name the table behind it", "%s is a view, which can't be a topic", t.table)}, errEnough
	case t.table.IsMessageTable():
		return []Result{ok("%s is a message table", t.table)}, nil
	}
	return []Result{ok("%s is no message table: consume and tail print its rows as JSON, produce can't write to it", t.table)}, nil
}

// engine checks the table's storage engine.
func engine(ctx context.Context, t *topic) ([]Result, error) {
	if t.table.Engine == "InnoDB" {
		return []Result{ok("InnoDB")}, nil
	}
	remedy := "ALTER TABLE " + ident.Quote(t.table.Name) + " ENGINE=InnoDB"
	var transactional string
	err := t.get(ctx, &transactional, "SELECT COALESCE(TRANSACTIONS, '') FROM information_schema.ENGINES WHERE ENGINE = ?", t.table.Engine)
	switch {
	case err != nil && !errors.Is(err, sql.ErrNoRows):
		return nil, err
	case strings.EqualFold(transactional, "YES"):
		return []Result{warning(remedy, "%s: mqnotify is tested only with InnoDB, and may not see open transactions of another engine", t.table.Engine)}, nil
	}
	return []Result{warning(remedy, "%s has no transactions: a message stays when the transaction that published it is rolled back, "+
		"and rows may be lost in a crash", t.table.Engine)}, nil
}

// key checks the column that consumers read by.
func key(ctx context.Context, t *topic) ([]Result, error) {
	column, err := t.table.KeyColumn("")
	if err != nil {
		return []Result{problem("", "%v", err)}, nil // the error has its remedy
	}
	name := ident.Quote(column.Name)
	switch {
	case !t.table.Unique(column.Name):
		return []Result{problem("ALTER TABLE "+ident.Quote(t.table.Name)+" ADD UNIQUE KEY ("+name+")",
			"key %s (%s) has no unique index of its own: rows with the same key can't be distinguished", name, column.ColumnType)}, nil
	case !t.table.CheapHead(column.Name):
		return []Result{warning("add an index of type BTREE, or use the one-row flag: consume --flag",
			"key %s (%s) has no index that can be read in order: each poll of the largest id, and each page, reads the whole table", name, column.ColumnType)}, nil
	}
	if !column.AutoIncrement {
		return []Result{problem("mqnotify capture install "+t.name+", or consume --any-key if no row is ever inserted with a smaller key than an earlier one",
			"key %s (%s) is not AUTO_INCREMENT: a row that is inserted later with a smaller key is lost to consumers", name, column.ColumnType)}, nil
	}
	var below bool
	if err := t.get(ctx, &below, "SELECT EXISTS (SELECT 1 FROM "+ident.Quote(t.table.Name)+" WHERE "+name+" <= 0)"); err != nil {
		return nil, err
	}
	if below {
		return []Result{problem("give these rows other ids, or delete them; consume --any-key reads all other rows",
			"key %s (%s) is 0 or less in some rows, which no consumer reads", name, column.ColumnType)}, nil
	}
	var largest sql.Null[uint64]
	if err := t.get(ctx, &largest, "SELECT MAX("+name+") FROM "+ident.Quote(t.table.Name)); err != nil {
		return nil, err
	}
	if !largest.Valid {
		return []Result{ok("key %s (%s), unique, in order; the table is empty", name, column.ColumnType)}, nil
	}
	return []Result{ok("key %s (%s), unique, in order; the largest is %d", name, column.ColumnType, largest.V)}, nil
}

// privileges tries the statements of consumers and producers on the table.
func privileges(ctx context.Context, t *topic) ([]Result, error) {
	name := ident.Quote(t.table.Name)
	uses := []attempts{{"consume and tail", []string{"SELECT * FROM " + name + " WHERE FALSE"}}}
	if t.table.IsMessageTable() {
		uses = append(uses, attempts{"produce", []string{
			"INSERT INTO " + name + " (headers, payload) SELECT NULL, '' FROM DUAL WHERE FALSE"}})
	}
	can, results, err := t.judge(ctx, uses)
	if err != nil {
		return nil, err
	}
	if len(can) > 0 {
		results = append([]Result{ok("this account can %s", strings.Join(can, ", "))}, results...)
	}
	return results, nil
}
