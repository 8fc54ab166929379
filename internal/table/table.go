// Package table knows what a table is (its columns, indexes and the key it can
// be read by) and writes its rows as faithful JSON.
package table

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// Table is what the server tells of a table to this account: columns that the
// account may not see are not in it. It is not changed after Describe, and so
// is safe for concurrent use.
type Table struct {
	Schema, Name string // as the server stores them, whatever case they were asked for in
	Engine       string // "InnoDB"; empty for a view
	IsView       bool
	Columns      []Column // in the table's order, invisible ones included
	Indexes      []Index
}

// Column is a column of a table.
type Column struct {
	Name          string
	DataType      string // "bigint", "varchar", in lower case
	ColumnType    string // the whole of it: "bigint(20) unsigned"
	CharSet       string // empty if the type has none
	Collation     string // the same
	Nullable      bool
	Unsigned      bool
	HasDefault    bool // an INSERT may leave it out
	Generated     bool // an INSERT must leave it out
	AutoIncrement bool
	Invisible     bool // not in SELECT *
	IsJSON        bool // MySQL's JSON, and MariaDB's, a LONGTEXT with a check
}

// Index is an index of a table.
type Index struct {
	Name    string // "PRIMARY" for the primary key
	Unique  bool
	Ordered bool     // can be read in order: a tree, and not hidden from the optimizer
	Columns []string // an expression or the prefix of a column is ""
}

// Primary reports whether the index is the primary key.
func (i Index) Primary() bool { return i.Name == "PRIMARY" }

// String is the quoted name with the database before it, fit for SQL too.
func (t *Table) String() string {
	return ident.Quote(t.Schema) + "." + ident.Quote(t.Name)
}

// Column is the column of that name in any case, as in SQL. For an unknown one
// the error is ErrNoColumn and lists the names that there are; for what can't
// be a name it is an *ident.InvalidError.
func (t *Table) Column(name string) (Column, error) {
	if err := ident.Check(name); err != nil {
		return Column{}, fmt.Errorf("table: column of %s: %w", t, err)
	}
	names := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		if strings.EqualFold(c.Name, name) {
			return c, nil
		}
		names[i] = c.Name
	}
	return Column{}, failf(ErrNoColumn, "table %s has no column %s%s; its columns are %s",
		t, ident.Quote(name), didYouMean(name, names), list(names))
}

// Unique reports whether no two rows can have the same value in the column.
func (t *Table) Unique(column string) bool {
	for _, index := range t.Indexes {
		if index.Unique && len(index.Columns) == 1 && index.Columns[0] == column {
			return true
		}
	}
	return false
}

// CheapHead reports whether the server finds the column's largest value, and the
// rows after a value in order, without reading the whole table: the column
// leads an ordered index.
func (t *Table) CheapHead(column string) bool {
	for _, index := range t.Indexes {
		if index.Ordered && index.Columns[0] == column {
			return true
		}
	}
	return false
}

// IsInteger reports whether the column holds whole numbers of a fixed size.
func (c Column) IsInteger() bool {
	switch c.DataType {
	case "tinyint", "smallint", "mediumint", "int", "bigint":
		return true
	}
	return false
}

// PrimaryKey is the names of the primary key's columns; none if there is no such key, or if it has the prefix of a column.
func (t *Table) PrimaryKey() []string {
	for _, index := range t.Indexes {
		if index.Primary() && !slices.Contains(index.Columns, "") {
			return index.Columns
		}
	}
	return nil
}
