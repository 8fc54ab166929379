package table

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// JSONExpression is SQL that writes columns of a row as an [Encoder] does, for a
// trigger. row is what stands before a column's name: NEW or OLD.
//
// It differs in two places: a FLOAT is written with the digits of a DOUBLE
// (1.100000023841858 for 1.1), which read back as the same FLOAT, and a TIMESTAMP is in UTC whatever the time_zone of
// the session is. It wants sql_mode ALLOW_INVALID_DATES. Its value is NULL when
// some part of it does not fit into max_allowed_packet; a column that is NULL does
// not make it so.
func JSONExpression(columns []Column, row string) string {
	if len(columns) == 0 {
		return "'{}'"
	}
	var b strings.Builder
	b.WriteString("CONCAT(")
	for i, c := range columns {
		before := ","
		if i == 0 {
			before = "{"
		}
		name := row + "." + ident.Quote(c.Name)
		key := func(name string) string { return string(AppendString([]byte(before), []byte(name))) + ":" }
		if c.form() == asJSON { // the JSON value null is not NULL
			fmt.Fprintf(&b, "IF(JSON_VALID(%s) AND JSON_TYPE(%s) = 'NULL', %s, CONCAT(%s, IF(%s IS NULL, 'null', %s))),\n        ",
				name, name, ident.Literal(key(c.Name+"_json")+`"null"`), ident.Literal(key(c.Name)), name, c.jsonExpression(name))
			continue
		}
		fmt.Fprintf(&b, "%s, IF(%s IS NULL, 'null', %s),\n        ", ident.Literal(key(c.Name)), name, c.jsonExpression(name))
	}
	b.WriteString("'}')")
	return b.String()
}

// jsonExpression writes a value that is not NULL.
func (c Column) jsonExpression(name string) string {
	text := "CONVERT(" + name + " USING utf8mb4)"
	switch c.form() {
	case asDigits, asBits:
		return name + " + 0" // without the zeros of ZEROFILL, which JSON has not
	case asBase64:
		return `CONCAT('"', REPLACE(TO_BASE64(` + name + `), CHAR(10 USING utf8mb4), ''), '"')`
	case asJSON: // on MariaDB it is the text that was stored
		return "IF(JSON_VALID(" + name + "), REPLACE(REPLACE(" + text + ", CHAR(10 USING utf8mb4), ''), CHAR(13 USING utf8mb4), ''), JSON_QUOTE(" + text + "))"
	case asTime:
		return c.timeExpression(name, text)
	}
	switch c.DataType {
	case "float", "double":
		// MySQL cuts an expression to 22 characters, but not a column; a FLOAT column has only six digits. The longer of the
		// two texts has every digit that tells the number from all others of its type.
		column, expression := "CONCAT("+name+")", "CONCAT("+name+" * 1e0)"
		return "IF(LENGTH(" + column + ") > LENGTH(" + expression + "), " + column + ", " + expression + ")"
	}
	return "JSON_QUOTE(" + text + ")"
}

// timeExpression writes RFC 3339 in UTC, or the server's text where there is no such time.
func (c Column) timeExpression(name, text string) string {
	if c.DataType == "timestamp" {
		// By the number of seconds, since the text is in the session's time zone, in
		// which an hour of the autumn is there twice.
		format := "DATE_FORMAT(TIMESTAMP'1970-01-01 00:00:00' + INTERVAL UNIX_TIMESTAMP(" + name + ") SECOND, '"
		digits := c.fraction()
		if digits == 0 {
			format += `"%Y-%m-%dT%H:%i:%sZ"')`
		} else {
			format = "CONCAT(LEFT(" + format + `"%Y-%m-%dT%H:%i:%s.%f'), ` + strconv.Itoa(len(`"2006-01-02T15:04:05.`)+digits) + `), 'Z"')`
		}
		return "IF(" + name + " + 0, " + format + ", JSON_QUOTE(" + text + "))"
	}
	day := "DAYOFMONTH(" + name + ")"
	return "IF(MONTH(" + name + ") AND " + day + " AND " + day + " <= DAYOFMONTH(LAST_DAY(" + name + ")), " +
		`CONCAT('"', REPLACE(` + text + `, ' ', 'T'), 'Z"'), JSON_QUOTE(` + text + "))"
}

// fraction is how many digits of a second the column has: 3 of "timestamp(3)".
func (c Column) fraction() int {
	_, rest, _ := strings.Cut(c.ColumnType, "(")
	digits, _, _ := strings.Cut(rest, ")")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}
