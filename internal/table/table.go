// Package table describes tables (their columns, indexes and the key to read
// them by) and writes their rows as exact JSON.
package table

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// Table is the definition of a table as the account may see it: columns that the
// account may not see are missing. It is immutable after Describe, and so
// safe for concurrent use.
type Table struct {
	Schema, Name string // as the server stores them, which may differ in case from the names that were asked for
	Engine       string // "InnoDB"; empty for a view
	IsView       bool
	Columns      []Column // in the table's order, invisible ones included
	Indexes      []Index
}

// Column is a column of a table.
type Column struct {
	Name          string
	DataType      string // "bigint", "varchar", in lower case
	ColumnType    string // the whole type: "bigint(20) unsigned"
	CharSet       string // empty if the type has none
	Collation     string // empty if the type has none
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
	Ordered bool     // can be read in order: a tree that the optimizer may use
	Columns []string // "" for an expression or a prefix of a column
}

// String returns the quoted name with the database before it, which is also valid SQL.
func (t *Table) String() string {
	return ident.Quote(t.Schema) + "." + ident.Quote(t.Name)
}

// Column returns the column of that name in any case, as in SQL. If there is none,
// the error is ErrNoColumn and lists the existing names; if name can't
// be a name, it is an *ident.InvalidError.
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
	return slices.ContainsFunc(t.Indexes, func(i Index) bool { return i.Unique && len(i.Columns) == 1 && i.Columns[0] == column })
}

// CheapHead reports whether the server finds the column's largest value, and the
// rows after a value in order, without reading the whole table. This is so if the column
// leads an ordered index.
func (t *Table) CheapHead(column string) bool {
	return slices.ContainsFunc(t.Indexes, func(i Index) bool { return i.Ordered && i.Columns[0] == column })
}

// IsInteger reports whether the column holds whole numbers of a fixed size.
func (c Column) IsInteger() bool {
	switch c.DataType {
	case "tinyint", "smallint", "mediumint", "int", "bigint":
		return true
	}
	return false
}

// PrimaryKey returns the names of the primary key's columns, or nil if there is no such key or if it contains a prefix of a column.
func (t *Table) PrimaryKey() []string {
	for _, index := range t.Indexes {
		if index.Name == "PRIMARY" && !slices.Contains(index.Columns, "") {
			return index.Columns
		}
	}
	return nil
}
