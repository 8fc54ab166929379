package table

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// PositionExpression is SQL that writes a column's value as a text that can be stored. A position is one such text for each column of a primary key: it says
// where a reader is that goes through a table in the order of the key. row is what stands before the column's name.
func (c Column) PositionExpression(row string) string {
	name := row + "." + ident.Quote(c.Name)
	switch {
	case c.asUnsigned():
		return "CAST(" + name + " AS UNSIGNED)"
	case c.DataType == "float" || c.DataType == "double":
		return allDigits(name)
	case c.CharSet != "" || c.isBytes():
		return "HEX(" + name + ")"
	}
	return "CAST(" + name + " AS CHAR)"
}

// positionValue is SQL with a parameter, and the parameter's value, for a text of PositionExpression. It is of the column's type, so
// that the server compares it as it orders the column's index.
func (c Column) positionValue(text string) (expression string, value any, err error) {
	switch {
	case c.asUnsigned():
		value, err = strconv.ParseUint(text, 10, 64)
		return "?", value, err
	case c.IsInteger():
		value, err = strconv.ParseInt(text, 10, 64)
		return "?", value, err
	case c.DataType == "float" || c.DataType == "double":
		value, err = strconv.ParseFloat(text, 64)
		return "?", value, err
	case c.DataType == "decimal":
		_, digits, _ := strings.Cut(c.ColumnType, "(")
		digits, _, _ = strings.Cut(digits, ")")
		return "CAST(? AS DECIMAL(" + digits + "))", text, nil
	case c.CharSet != "":
		return "CONVERT(UNHEX(?) USING " + ident.Quote(c.CharSet) + ") COLLATE " + ident.Quote(c.Collation), text, nil
	case c.isBytes():
		return "UNHEX(?)", text, nil
	}
	return "?", text, nil
}

// asUnsigned reports whether the column is ordered by a number of 0 or more: ENUM and SET are ordered by their numbers, too.
func (c Column) asUnsigned() bool {
	return c.IsInteger() && c.Unsigned || slices.Contains([]string{"bit", "enum", "set", "year"}, c.DataType)
}

func (c Column) isBytes() bool {
	return strings.HasSuffix(c.DataType, "binary") || strings.HasSuffix(c.DataType, "blob")
}

// After is an SQL condition, with its arguments, that is true of the rows whose key comes after the position. row is what stands
// before the columns' names. It is written so that servers read the rows by the key's index.
func After(key []Column, row string, position []string) (condition string, args []any, err error) {
	return compare(key, row, position, ">", ">")
}

// UpTo is After for the rows whose key comes before the position or is the position.
func UpTo(key []Column, row string, position []string) (condition string, args []any, err error) {
	return compare(key, row, position, "<", "<=")
}

// compare compares the columns one after the other, because servers use no index to compare rows. last compares the last column.
func compare(key []Column, row string, position []string, operator, last string) (condition string, args []any, err error) {
	if len(key) != len(position) {
		return "", nil, fmt.Errorf("table: a position of %d values, in a key of %d columns", len(position), len(key))
	}
	var cases, equal []string
	var before []any
	for i, c := range key {
		expression, value, err := c.positionValue(position[i])
		if err != nil {
			return "", nil, fmt.Errorf("table: a position's value of column %s: %w", ident.Quote(c.Name), err)
		}
		if i == len(key)-1 {
			operator = last
		}
		name := row + "." + ident.Quote(c.Name)
		cases = append(cases, strings.Join(append(equal, name+" "+operator+" "+expression), " AND "))
		args = append(append(args, before...), value)
		equal, before = append(equal, name+" = "+expression), append(before, value)
	}
	return "(" + strings.Join(cases, " OR ") + ")", args, nil
}
