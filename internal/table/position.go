package table

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// PositionExpression returns SQL that writes a column's value as a text that can be stored. A position has one such text for each
// column of a primary key. It is how far a reader is that goes through a table in the order of the key. row is the prefix of the
// column's name.
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

// positionValue returns SQL with a parameter, and the parameter's value, for a text of PositionExpression. It has the column's type,
// so that the server compares it in the order of the column's index.
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

// asUnsigned reports whether the column is ordered by a number that is not negative, as ENUM and SET are.
func (c Column) asUnsigned() bool {
	return c.IsInteger() && c.Unsigned || slices.Contains([]string{"bit", "enum", "set", "year"}, c.DataType)
}

func (c Column) isBytes() bool {
	return strings.HasSuffix(c.DataType, "binary") || strings.HasSuffix(c.DataType, "blob")
}

// After returns an SQL condition, with its arguments, that is true for rows whose key comes after the position. row is the prefix of
// the columns' names. Servers can use the key's index for it.
func After(key []Column, row string, position []string) (condition string, args []any, err error) {
	return compare(key, row, position, ">", ">")
}

// UpTo is After for rows whose key comes before the position or is the position.
func UpTo(key []Column, row string, position []string) (condition string, args []any, err error) {
	return compare(key, row, position, "<", "<=")
}

// compare compares column by column, because servers use no index to compare rows. last is the operator of the last column.
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
