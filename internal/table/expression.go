package table

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// JSONExpression returns SQL that writes columns of a row as an [Encoder] does, for a
// trigger. row is the prefix of the columns' names: NEW or OLD. The SQL is right while SameTypes is true. It must be
// short, because servers set up every expression again for every row, which costs more than to evaluate it.
//
// It differs from an Encoder in two ways. A FLOAT has the digits of a DOUBLE
// (1.100000023841858 for 1.1), which read back as the same FLOAT. A TIMESTAMP is in UTC whatever the session's time_zone
// is. It needs sql_mode ALLOW_INVALID_DATES. Its value is NULL if
// some part of it does not fit into max_allowed_packet, but not because a column is NULL.
func JSONExpression(columns []Column, row string) string {
	return rowExpression(columns, row, Column.jsonExpression)
}

// AnyJSONExpression is JSONExpression for columns whose types were changed since the trigger was made. It writes every column by
// the type that it has when the trigger runs, as far as SQL shows that. It never fails, and takes ten times as long.
func AnyJSONExpression(columns []Column, row string) string {
	return rowExpression(columns, row, Column.anyTypeExpression)
}

func rowExpression(columns []Column, row string, expression func(c Column, name string) string) string {
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
		if c.form() == asJSON { // the JSON value null is not the SQL value NULL
			fmt.Fprintf(&b, "IF(IF(%s, JSON_TYPE(%s) = 'NULL', FALSE), %s, CONCAT(%s, IF(%s IS NULL, 'null', %s))),\n        ", isJSON(name), name,
				ident.Literal(key(c.Name+"_json")+`"null"`), ident.Literal(key(c.Name)), name, expression(c, name))
			continue
		}
		fmt.Fprintf(&b, "%s, IF(%s IS NULL, 'null', %s),\n        ", ident.Literal(key(c.Name)), name, expression(c, name))
	}
	b.WriteString("'}')")
	return b.String()
}

// SameTypes returns SQL that is true while each column is of the kind that it is of now: a text, bytes, or a number or time. A text
// has a character set, and numbers and times have a higher coercibility than texts and bytes.
func SameTypes(columns []Column, row string) string {
	var texts, bytes, others, all []string
	for _, c := range columns {
		name := row + "." + ident.Quote(c.Name)
		switch {
		case c.CharSet != "":
			texts = append(texts, "CHARSET("+name+")")
		case c.form() == asBits || c.form() == asBase64 || c.DataType == "json":
			bytes = append(bytes, "CHARSET("+name+") <> 'binary'", "COERCIBILITY("+name+") > 2")
		case c.isNumberOrTime():
			others = append(others, "COERCIBILITY("+name+") <= 2")
		}
	}
	if len(texts) > 0 {
		all = append(all, "'binary' IN ("+strings.Join(texts, ", ")+")")
	}
	all = append(append(all, bytes...), others...)
	if len(all) == 0 {
		return "TRUE"
	}
	return "NOT (" + strings.Join(all, " OR ") + ")"
}

func (c Column) isNumberOrTime() bool {
	switch c.DataType {
	case "float", "double", "decimal", "date", "time":
		return true
	}
	return c.form() == asDigits || c.form() == asTime
}

// jsonExpression returns SQL for a value that is not NULL, of a column whose type is still of the same kind.
func (c Column) jsonExpression(name string) string {
	quoted := "JSON_QUOTE(" + asUTF8(name) + ")"
	switch c.form() {
	case asDigits:
		return name + " + 0" // removes the leading zeros of ZEROFILL, which JSON does not allow
	case asBits: // at most eight bytes; a column that became BINARY may have more
		return "IF(LENGTH(" + name + ") <= 8, " + asUTF8("CONV(HEX("+name+"), 16, 10)") + ", " + inBase64(name) + ")"
	case asBase64:
		return inBase64(name)
	case asJSON: // on MariaDB it is the text as it was stored
		if c.DataType == "json" {
			return "IF(JSON_VALID(" + name + "), " + oneLine(name) + ", " + inBase64(name) + ")"
		}
		return "IF(JSON_VALID(" + name + "), " + oneLine(name) + ", " + quoted + ")"
	case asTime:
		return "IF(CONCAT(" + name + ") LIKE '____-__-__ __:__:__%', " + c.timeExpression(name, asUTF8(name)) + ", " + quoted + ")"
	}
	if c.DataType == "float" || c.DataType == "double" {
		text := "CONCAT(" + name + ")"
		return "IF(" + text + " LIKE '%:%' OR " + text + " LIKE '____-__-__' OR " + withZeros(name) + ", " + text[:len(text)-1] + " + 0), " + allDigits(name) + ")"
	}
	return quoted
}

// anyTypeExpression returns SQL for a value that is not NULL. It does not fail if the column's type was changed since the trigger was
// made, but writes the column by its current type, as far as SQL shows that.
func (c Column) anyTypeExpression(name string) string {
	numberOrTime, text := "COERCIBILITY("+name+") > 2", "CONCAT("+name+")"
	shown := "IF(" + withZeros(name) + ", JSON_QUOTE(" + asUTF8(name) + "), " + asUTF8(text) + ")" // a number, without arithmetic
	switch c.form() {
	case asDigits:
		return anyExpression(name, number(name), true)
	case asBits: // at most eight bytes; a column that became BINARY may have more
		return "IF(CHARSET(" + name + ") = 'binary' AND NOT " + numberOrTime + " AND LENGTH(" + name + ") <= 8, " + asUTF8("CONV(HEX("+name+"), 16, 10)") + ", " +
			anyExpression(name, number(name), false) + ")"
	case asBase64:
		if strings.HasSuffix(c.DataType, "blob") || strings.HasSuffix(c.DataType, "binary") {
			return anyExpression(name, shown, false)
		}
		return inBase64(name) // a geometry or a vector, which MySQL can't convert to a text
	case asJSON:
		return "IF(" + isJSON(name) + ", " + oneLine(name) + ", " + anyExpression(name, shown, false) + ")"
	case asTime:
		return "IF(" + numberOrTime + " AND " + text + " LIKE '____-__-__ __:__:__%', " + c.timeExpression(name, asUTF8(name)) + ", " +
			anyExpression(name, shown, true) + ")"
	}
	switch c.DataType {
	case "float", "double":
		return anyExpression(name, number(name), true)
	case "decimal":
		return "IF(" + numberOrTime + ", JSON_QUOTE(" + allDigits(name) + "), " + anyExpression(name, shown, true) + ")"
	}
	return anyExpression(name, shown, c.CharSet != "")
}

// anyExpression returns SQL that writes a column by the type that it has when the trigger runs: a text has a character set, and
// numbers and times have a higher coercibility than texts and bytes. number is SQL for a number: arithmetic in it makes the
// trigger fail if the column is a geometry or a UUID.
func anyExpression(name, number string, maybeJSON bool) string {
	text, quoted := "CONCAT("+name+")", "JSON_QUOTE("+asUTF8(name)+")"
	json := ""
	if maybeJSON {
		json = " WHEN " + isJSON(name) + " THEN " + oneLine(name)
	}
	return "CASE WHEN CHARSET(" + name + ") <> 'binary' THEN " + quoted +
		" WHEN COERCIBILITY(" + name + ") > 2 THEN IF(" + text + " LIKE '%:%' OR " + text + " LIKE '____-__-__', " + quoted + ", " + number + ")" + json +
		" ELSE " + inBase64(name) + " END"
}

func inBase64(name string) string {
	return `CONCAT('"', REPLACE(TO_BASE64(` + name + `), CHAR(10 USING utf8mb4), ''), '"')`
}

// isJSON returns SQL that is true if a column is JSON: on MySQL it has the type JSON, which counts as bytes; on MariaDB
// it is a text with valid JSON, because bytes may be valid JSON by chance.
func isJSON(name string) string {
	return "JSON_VALID(" + name + ") AND (CHARSET(" + name + ") <> 'binary') = JSON_VALID(BINARY '[]')"
}

// oneLine returns SQL for JSON without its line breaks, which MariaDB stores.
func oneLine(name string) string {
	return "REPLACE(REPLACE(" + asUTF8(name) + ", CHAR(10 USING utf8mb4), ''), CHAR(13 USING utf8mb4), '')"
}

func withZeros(name string) string {
	return "CONCAT(" + name + ") LIKE '0_%' AND CONCAT(" + name + ") NOT LIKE '0.%'"
}

// number returns SQL for a number without the leading zeros of ZEROFILL, which JSON does not allow.
func number(name string) string {
	return "IF(" + withZeros(name) + ", " + asUTF8("CONCAT("+name+" + 0)") + ", " + allDigits(name) + ")"
}

// allDigits returns SQL for a number with every digit that distinguishes it from the other numbers of its type. The longer of two
// texts has them: MySQL cuts an expression to 22 characters, and servers cut a FLOAT column to six digits.
func allDigits(name string) string {
	column, expression := asUTF8("CONCAT("+name+")"), asUTF8("CONCAT("+name+" + 0)")
	return "IF(LENGTH(" + column + ") > LENGTH(" + expression + "), " + column + ", " + expression + ")"
}

// asUTF8 converts one part. Every part is converted, because MariaDB evaluates a part that it must convert itself even in a branch
// that is not taken.
func asUTF8(name string) string { return "CONVERT(" + name + " USING utf8mb4)" }

// timeExpression returns SQL for RFC 3339 in UTC, or for the server's text if RFC 3339 has no such time.
func (c Column) timeExpression(name, text string) string {
	if c.DataType == "timestamp" {
		// Use the number of seconds, because the text is in the session's time zone, in
		// which an hour of the autumn occurs twice.
		format := "DATE_FORMAT(TIMESTAMP'1970-01-01 00:00:00' + INTERVAL UNIX_TIMESTAMP(" + name + ") SECOND, '"
		digits := c.fraction()
		if digits == 0 {
			format += `"%Y-%m-%dT%H:%i:%sZ"')`
		} else {
			format = "CONCAT(LEFT(" + format + `"%Y-%m-%dT%H:%i:%s.%f'), ` + strconv.Itoa(len(`"2006-01-02T15:04:05.`)+digits) + `), 'Z"')`
		}
		return "IF(CONCAT(" + name + ") NOT LIKE '0000%', " + format + ", JSON_QUOTE(" + text + "))"
	}
	// IF and not AND: MariaDB evaluates all operands of AND, and fails if the column has another type now.
	day := "DAYOFMONTH(" + name + ")"
	rfc, asShown := `CONCAT('"', REPLACE(`+text+`, ' ', 'T'), 'Z"')`, "JSON_QUOTE("+text+")"
	valid := "IF(" + day + " > 0, " + day + " <= DAYOFMONTH(LAST_DAY(" + name + ")), FALSE)"
	return "IF(IF(MONTH(" + name + ") > 0, " + valid + ", FALSE), " + rfc + ", " + asShown + ")"
}

// fraction returns the number of fraction digits of the column: 3 for "timestamp(3)".
func (c Column) fraction() int {
	_, rest, _ := strings.Cut(c.ColumnType, "(")
	digits, _, _ := strings.Cut(rest, ")")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// KeyExpression returns SQL that writes the values of a row's key columns as one JSON string: the text of a single value, or the JSON
// array of several.
func KeyExpression(columns []Column, row string) string {
	return keyExpression(columns, row, Column.jsonExpression)
}

// AnyKeyExpression is KeyExpression for columns whose types were changed since the trigger was made.
func AnyKeyExpression(columns []Column, row string) string {
	return keyExpression(columns, row, Column.anyTypeExpression)
}

func keyExpression(columns []Column, row string, expression func(c Column, name string) string) string {
	values := make([]string, len(columns))
	for i, c := range columns {
		values[i] = expression(c, row+"."+ident.Quote(c.Name))
	}
	if len(values) == 1 {
		return "JSON_QUOTE(JSON_UNQUOTE(CONCAT(" + values[0] + ")))"
	}
	return "JSON_QUOTE(CONCAT('[', " + strings.Join(values, ", ',', ") + ", ']'))"
}

// TypedColumn returns a column with the fields that JSONExpression needs. columnType is Column.ColumnType, or "json" for a column
// that is JSON.
func TypedColumn(name, columnType string) Column {
	c := Column{Name: name, ColumnType: columnType, IsJSON: columnType == "json"}
	c.DataType = strings.ToLower(columnType)
	if end := strings.IndexAny(columnType, "( "); end >= 0 {
		c.DataType = strings.ToLower(columnType[:end])
	}
	return c
}
