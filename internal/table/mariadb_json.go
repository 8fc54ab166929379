package table

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/mqnotify/mqnotify/internal/server"
)

// isMaybeJSON reports whether a column may be MariaDB's JSON: a LONGTEXT with CHECK (json_valid(column)), whose collation ALTER TABLE
// ... CONVERT TO CHARACTER SET may have changed.
func isMaybeJSON(dataType string) bool { return dataType == "longtext" }

// describeJSON marks the columns that are MariaDB's JSON. It reads the check
// from the table's definition, because information_schema.CHECK_CONSTRAINTS shows it
// only to accounts that have more privileges than SELECT.
func (t *Table) describeJSON(ctx context.Context, q Queryer) error {
	json, err := t.jsonColumns(ctx, q)
	for i, is := range json {
		t.Columns[i].IsJSON = is
	}
	return err
}

// jsonColumns reports for every column whether it is JSON now. It returns nil if the account may not see the definition.
func (t *Table) jsonColumns(ctx context.Context, q Queryer) ([]bool, error) {
	var name, definition string
	err := each(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&name, &definition) },
		"SHOW CREATE TABLE "+t.String())
	switch {
	case server.NoPrivilege(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	json := make([]bool, len(t.Columns))
	for i, c := range t.Columns {
		json[i] = c.DataType == "json" || hasJSONCheck(definition, c.Name)
	}
	return json, nil
}

// MaybeJSON reports whether the column is MariaDB's JSON, or may become so by an ALTER TABLE without a visible change in results. The
// server sends such a column as it sends a TEXT of any size.
func (c Column) MaybeJSON() bool {
	return slices.Contains([]string{"tinytext", "text", "mediumtext", "longtext"}, c.DataType)
}

// JSONChanged reports whether a column has become JSON, or is no longer JSON, since the table was described.
func (t *Table) JSONChanged(ctx context.Context, q Queryer) (bool, error) {
	json, err := t.jsonColumns(ctx, q)
	for i, is := range json {
		if t.Columns[i].IsJSON != is {
			return true, nil
		}
	}
	return false, err
}

// hasJSONCheck reports whether a line of the definition defines the column as a LONGTEXT and ends in the check. A comment
// or a default that looks like such a line does not match: it ends in a quote, and its line breaks
// are escaped. Under sql_mode ANSI_QUOTES names are in double quotes.
func hasJSONCheck(definition, column string) bool {
	for _, quote := range []string{"`", `"`} {
		name := quote + strings.ReplaceAll(column, quote, quote+quote) + quote
		check := " CHECK (json_valid(" + name + "))"
		_, rest, _ := strings.Cut(definition, "\n  "+name+" longtext ")
		options, rest, found := strings.Cut(rest, check)
		if found && !strings.Contains(options, "\n") && (strings.HasPrefix(rest, ",\n") || strings.HasPrefix(rest, "\n)")) {
			return true
		}
	}
	return false
}
