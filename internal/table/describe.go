package table

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/server"
)

// Queryer runs a query. *sql.DB, *sql.Conn and their sqlx equivalents implement it.
type Queryer = server.Queryer

// Describe reads the definition of a table or view from the server. The error is ErrNoTable if it does not exist, or if
// the account may not see it, because the server does not distinguish these, and an
// *ident.InvalidError if name can't be a name.
//
// On a MariaDB server only the table's definition shows that a column is JSON.
// An account with privileges on single columns may not read it; then the
// columns count as text.
func Describe(ctx context.Context, q Queryer, database, name string) (*Table, error) {
	if err := ident.Check(name); err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	t, err := describeTable(ctx, q, database, name)
	if err != nil {
		return nil, err
	}
	if err := t.describeColumns(ctx, q); err != nil {
		return nil, fmt.Errorf("table: read columns of %s: %w", t, err)
	}
	if err := t.describeIndexes(ctx, q); err != nil {
		return nil, fmt.Errorf("table: read indexes of %s: %w", t, err)
	}
	return t, nil
}

func describeTable(ctx context.Context, q Queryer, database, name string) (*Table, error) {
	var t *Table
	err := each(ctx, q, func(rows *sql.Rows) error {
		t = &Table{}
		var kind string
		err := rows.Scan(&t.Schema, &t.Name, &t.Engine, &kind)
		t.IsView = strings.HasSuffix(kind, "VIEW") // also SYSTEM VIEW
		return err
	}, `SELECT TABLE_SCHEMA AS a, TABLE_NAME AS b, COALESCE(ENGINE, '') AS c, TABLE_TYPE AS d
		FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?`, database, name)
	if err != nil {
		return nil, fmt.Errorf("table: look up %s.%s: %w", ident.Quote(database), ident.Quote(name), err)
	}
	if t == nil {
		return nil, noTable(ctx, q, database, name)
	}
	return t, nil
}

func noTable(ctx context.Context, q Queryer, database, name string) error {
	var names []string
	err := each(ctx, q, func(rows *sql.Rows) error {
		var other string
		err := rows.Scan(&other)
		names = append(names, other)
		return err
	}, `SELECT TABLE_NAME AS a FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? LIMIT 1000`, database)
	if err != nil {
		return fmt.Errorf("table: list tables of %s: %w", ident.Quote(database), err)
	}
	return failf(ErrNoTable, "no table %s in database %s%s, or this account has no privilege on it: "+
		"SHOW TABLES lists what it sees, SHOW GRANTS what it may do",
		ident.Quote(name), ident.Quote(database), didYouMean(name, names))
}

func (t *Table) describeColumns(ctx context.Context, q Queryer) error {
	maybeJSON := false
	err := each(ctx, q, func(rows *sql.Rows) error {
		var c Column
		var extra string
		err := rows.Scan(&c.Name, &c.DataType, &c.ColumnType, &c.CharSet, &c.Collation,
			&c.Nullable, &c.HasDefault, &extra)
		extra = strings.ToUpper(extra)
		c.DataType = strings.ToLower(c.DataType)
		c.Unsigned = c.CharSet == "" && strings.Contains(c.ColumnType, " unsigned")
		c.AutoIncrement = strings.Contains(extra, "AUTO_INCREMENT")
		c.Generated = strings.Contains(extra, " GENERATED") // not DEFAULT_GENERATED, a default
		c.Invisible = strings.Contains(extra, "INVISIBLE")
		c.HasDefault = c.HasDefault || c.Nullable || c.AutoIncrement || c.Generated
		c.IsJSON = c.DataType == "json"
		maybeJSON = maybeJSON || isMaybeJSON(c.DataType)
		t.Columns = append(t.Columns, c)
		return err
	}, `SELECT COLUMN_NAME AS a, DATA_TYPE AS b, COLUMN_TYPE AS c, COALESCE(CHARACTER_SET_NAME, '') AS d,
			COALESCE(COLLATION_NAME, '') AS e, IS_NULLABLE = 'YES' AS f, COLUMN_DEFAULT IS NOT NULL AS g, EXTRA AS h
		FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?
		ORDER BY ORDINAL_POSITION`, t.Schema, t.Name)
	if err != nil || !maybeJSON || t.IsView {
		return err
	}
	return t.describeJSON(ctx, q)
}

// describeIndexes reads the indexes. A comment's text is for MySQL or MariaDB from this version on: older ones have no such column.
func (t *Table) describeIndexes(ctx context.Context, q Queryer) error {
	return each(ctx, q, t.addIndexPart, `SELECT INDEX_NAME AS a, NON_UNIQUE AS b,
			INDEX_TYPE IN ('BTREE', 'LSMTREE') /*!80000 AND IS_VISIBLE = 'YES' */ /*M!100600 AND IGNORED = 'NO' */ AS c,
			CASE WHEN SUB_PART IS NULL THEN COALESCE(COLUMN_NAME, '') ELSE '' END AS d
		FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?
		ORDER BY INDEX_NAME, SEQ_IN_INDEX`, t.Schema, t.Name)
}

func (t *Table) addIndexPart(rows *sql.Rows) error {
	var part Index
	var notUnique bool
	var column string
	err := rows.Scan(&part.Name, &notUnique, &part.Ordered, &column)
	part.Unique = !notUnique
	at := slices.IndexFunc(t.Indexes, func(i Index) bool { return i.Name == part.Name })
	if at < 0 {
		at = len(t.Indexes)
		t.Indexes = append(t.Indexes, part)
	}
	t.Indexes[at].Columns = append(t.Indexes[at].Columns, column)
	return err
}

// each calls row with every row of the query's result.
func each(ctx context.Context, q Queryer, row func(*sql.Rows) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
