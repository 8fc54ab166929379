package table

import (
	"slices"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// KeyColumn returns the increasing integer key to read the table by: the column of
// the given name, or, if name is empty, the AUTO_INCREMENT column, or else a
// primary key of one integer column.
//
// A named column must be an integer, not nullable (rows without a key would
// never be found) and first in an ordered index. It need not be Unique: the caller checks
// whether rows with the same key can be distinguished.
//
// The error is ErrView, ErrNoKey or ErrNoColumn.
func (t *Table) KeyColumn(name string) (Column, error) {
	if t.IsView {
		return Column{}, failf(ErrView, "%s is a view and has no key to read it by: name the table behind it", t)
	}
	if name != "" {
		return t.namedKey(name)
	}
	for _, c := range t.Columns {
		if c.AutoIncrement && c.IsInteger() && t.leadsIndex(c.Name) {
			return c, nil
		}
	}
	if primary := t.PrimaryKey(); len(primary) == 1 {
		if c, err := t.Column(primary[0]); err == nil && c.IsInteger() {
			return c, nil
		}
	}
	return Column{}, failf(ErrNoKey, "table %s has no integer key: %s", t, t.keyRemedy())
}

// InOrder returns ErrNoKey for a key that is not AUTO_INCREMENT. A program or a sequence may give a row a smaller key
// than rows have that were committed long before, and a reader that goes by the key would never read it.
func (t *Table) InOrder(key Column) error {
	if key.AutoIncrement {
		return nil
	}
	return failf(ErrNoKey, "the key %s of table %s is not AUTO_INCREMENT: a row that is inserted later with a smaller key would be lost. "+
		"`mqnotify capture install %s` makes messages of the table's changes in the order of their arrival; or name an AUTO_INCREMENT column",
		ident.Quote(key.Name), t, t.Name)
}

func (t *Table) namedKey(name string) (Column, error) {
	c, err := t.Column(name)
	if err != nil {
		return Column{}, err
	}
	var lacks string
	switch {
	case !c.IsInteger():
		lacks = "is not an integer but " + c.ColumnType
	case c.Nullable:
		lacks = "may be NULL"
	case !t.leadsIndex(c.Name):
		lacks = "is not the first column of an index"
	case !c.AutoIncrement && !t.CheapHead(c.Name):
		lacks = "has an index that can't be read in order"
	default:
		return c, nil
	}
	return Column{}, failf(ErrNoKey, "column %s of table %s can't be its key, because it %s: %s",
		ident.Quote(c.Name), t, lacks, t.keyRemedy())
}

// keyRemedy returns a text that names suitable columns.
func (t *Table) keyRemedy() string {
	var fit []string
	for _, c := range t.Columns {
		if c.IsInteger() && !c.Nullable && t.CheapHead(c.Name) {
			fit = append(fit, c.Name)
		}
	}
	if len(fit) == 0 {
		return "name one with --id-column once an index begins with a NOT NULL integer column"
	}
	return "name one with --id-column, such as " + list(fit)
}

// leadsIndex reports whether an index begins with the column. An AUTO_INCREMENT
// column that is second in its index (MyISAM, Aria) counts from 1 in every
// group of rows, and is not a key of the table.
func (t *Table) leadsIndex(column string) bool {
	return slices.ContainsFunc(t.Indexes, func(i Index) bool { return i.Columns[0] == column })
}
