package table

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// JSONExpression is SQL that writes columns of a row as an [Encoder] does, for a
// trigger. row is what stands before a column's name: NEW or OLD. It holds while SameTypes does: servers set up each expression
// again for each row, which costs more than to evaluate it, so that it must be short.
//
// It differs in two places: a FLOAT is written with the digits of a DOUBLE
// (1.100000023841858 for 1.1), which read back as the same FLOAT, and a TIMESTAMP is in UTC whatever the time_zone of
// the session is. It wants sql_mode ALLOW_INVALID_DATES. Its value is NULL when
// some part of it does not fit into max_allowed_packet; a column that is NULL does
// not make it so.
func JSONExpression(columns []Column, row string) string {
	return rowExpression(columns, row, Column.jsonExpression)
}

// AnyJSONExpression is JSONExpression for columns whose types were changed since the trigger was made: each is written by the type that it has when
// the trigger runs, as far as SQL shows that. It never fails, and takes ten times as long.
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
		if c.form() == asJSON { // the JSON value null is not NULL
			fmt.Fprintf(&b, "IF(IF(%s, JSON_TYPE(%s) = 'NULL', FALSE), %s, CONCAT(%s, IF(%s IS NULL, 'null', %s))),\n        ", isJSON(name), name,
				ident.Literal(key(c.Name+"_json")+`"null"`), ident.Literal(key(c.Name)), name, expression(c, name))
			continue
		}
		fmt.Fprintf(&b, "%s, IF(%s IS NULL, 'null', %s),\n        ", ident.Literal(key(c.Name)), name, expression(c, name))
	}
	b.WriteString("'}')")
	return b.String()
}

// SameTypes is SQL that is true while each column is of the kind that it is of now: a text, bytes, or a number or time. A text is what
// has a character set, and numbers and times have a higher coercibility than texts and bytes have.
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

// jsonExpression writes a value that is not NULL, of a column of the same kind of type.
func (c Column) jsonExpression(name string) string {
	quoted := "JSON_QUOTE(" + asUTF8(name) + ")"
	switch c.form() {
	case asDigits:
		return name + " + 0" // without the zeros of ZEROFILL, which JSON has not
	case asBits: // eight bytes at most, where bytes may have any length
		return "IF(LENGTH(" + name + ") <= 8, " + asUTF8("CONV(HEX("+name+"), 16, 10)") + ", " + inBase64(name) + ")"
	case asBase64:
		return inBase64(name)
	case asJSON: // on MariaDB it is the text that was stored
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

// anyTypeExpression writes a value that is not NULL. A column whose type was changed since the trigger was made does not make
// it fail: it is written by what it is now, as far as SQL shows that.
func (c Column) anyTypeExpression(name string) string {
	numberOrTime, text := "COERCIBILITY("+name+") > 2", "CONCAT("+name+")"
	shown := "IF(" + withZeros(name) + ", JSON_QUOTE(" + asUTF8(name) + "), " + asUTF8(text) + ")" // a number without a sum
	switch c.form() {
	case asDigits:
		return anyExpression(name, number(name), true)
	case asBits: // eight bytes at most, where bytes may have any length
		return "IF(CHARSET(" + name + ") = 'binary' AND NOT " + numberOrTime + " AND LENGTH(" + name + ") <= 8, " + asUTF8("CONV(HEX("+name+"), 16, 10)") + ", " +
			anyExpression(name, number(name), false) + ")"
	case asBase64:
		if strings.HasSuffix(c.DataType, "blob") || strings.HasSuffix(c.DataType, "binary") {
			return anyExpression(name, shown, false)
		}
		return inBase64(name) // a geometry or a vector, of which MySQL makes no text
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

// anyExpression writes a column by the type that it has when the trigger runs: text is what has a character set, and numbers
// and times have a higher coercibility than texts and bytes have. number writes a number: with a sum in it, it makes the
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

// isJSON reports whether a column is of MySQL's type JSON, which counts as bytes, or has valid JSON on MariaDB, where the type
// is text, and bytes may be valid JSON, too.
func isJSON(name string) string {
	return "JSON_VALID(" + name + ") AND (CHARSET(" + name + ") <> 'binary') = JSON_VALID(BINARY '[]')"
}

// oneLine is JSON without its line breaks, which MariaDB stores.
func oneLine(name string) string {
	return "REPLACE(REPLACE(" + asUTF8(name) + ", CHAR(10 USING utf8mb4), ''), CHAR(13 USING utf8mb4), '')"
}

func withZeros(name string) string {
	return "CONCAT(" + name + ") LIKE '0_%' AND CONCAT(" + name + ") NOT LIKE '0.%'"
}

// number writes a number without the zeros of ZEROFILL, which JSON has not.
func number(name string) string {
	return "IF(" + withZeros(name) + ", " + asUTF8("CONCAT("+name+" + 0)") + ", " + allDigits(name) + ")"
}

// allDigits writes a number with every digit that tells it from all others of its type, which the longer of two texts has:
// MySQL cuts an expression to 22 characters, and servers cut a FLOAT column to six digits.
func allDigits(name string) string {
	column, expression := asUTF8("CONCAT("+name+")"), asUTF8("CONCAT("+name+" + 0)")
	return "IF(LENGTH(" + column + ") > LENGTH(" + expression + "), " + column + ", " + expression + ")"
}

// asUTF8 converts each part by itself: MariaDB evaluates a part that it has to convert itself, even of a branch that is not taken.
func asUTF8(name string) string { return "CONVERT(" + name + " USING utf8mb4)" }

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
		return "IF(CONCAT(" + name + ") NOT LIKE '0000%', " + format + ", JSON_QUOTE(" + text + "))"
	}
	// IF and not AND: MariaDB evaluates all that AND connects, and fails if the column has another type now.
	day := "DAYOFMONTH(" + name + ")"
	rfc, asShown := `CONCAT('"', REPLACE(`+text+`, ' ', 'T'), 'Z"')`, "JSON_QUOTE("+text+")"
	valid := "IF(" + day + " > 0, " + day + " <= DAYOFMONTH(LAST_DAY(" + name + ")), FALSE)"
	return "IF(IF(MONTH(" + name + ") > 0, " + valid + ", FALSE), " + rfc + ", " + asShown + ")"
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

// KeyExpression is SQL that writes the values of a row's key columns as one JSON string: the text of a single value, and the JSON
// array of several. AnyKeyExpression is to it what AnyJSONExpression is to JSONExpression.
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

// TypedColumn is a column of a type as far as JSONExpression needs it: columnType is Column.ColumnType, or "json" for a column
// that is JSON.
func TypedColumn(name, columnType string) Column {
	c := Column{Name: name, ColumnType: columnType, IsJSON: columnType == "json"}
	c.DataType = strings.ToLower(columnType)
	if end := strings.IndexAny(columnType, "( "); end >= 0 {
		c.DataType = strings.ToLower(columnType[:end])
	}
	return c
}
