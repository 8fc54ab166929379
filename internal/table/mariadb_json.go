package table

import (
	"context"
	"database/sql"
	"strings"

	"github.com/mqnotify/mqnotify/internal/server"
)

// MariaDB's JSON is a LONGTEXT of this collation with CHECK (json_valid(column)).
func isMaybeJSON(dataType, collation string) bool {
	return dataType == "longtext" && collation == "utf8mb4_bin"
}

// describeJSON marks the columns that MariaDB made of JSON. The check is read
// from the table's definition: information_schema.CHECK_CONSTRAINTS shows it
// only to accounts that may do more than SELECT.
func (t *Table) describeJSON(ctx context.Context, q Queryer) error {
	var name, definition string
	err := each(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&name, &definition) },
		"SHOW CREATE TABLE "+t.String())
	if server.NoPrivilege(err) {
		return nil
	}
	for i := range t.Columns {
		c := &t.Columns[i]
		if c.DataType == "longtext" && hasJSONCheck(definition, c.Name) {
			c.IsJSON = true
		}
	}
	return err
}

// hasJSONCheck tells whether a line of the definition ends in the check. A comment
// or a default that reads like it does not: it ends in a quote, and its line breaks
// are escaped. Under sql_mode ANSI_QUOTES names are in double quotes.
func hasJSONCheck(definition, column string) bool {
	for _, quote := range []string{"`", `"`} {
		name := quote + strings.ReplaceAll(column, quote, quote+quote) + quote
		check := " CHECK (json_valid(" + name + "))"
		if strings.Contains(definition, check+",\n") || strings.Contains(definition, check+"\n)") {
			return true
		}
	}
	return false
}
