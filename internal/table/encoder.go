package table

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// Encoder writes rows as JSON objects on one line, with their columns in order:
//
//	integers, YEAR       a number, exact in all 64 bits
//	BIT                  the number with these bits
//	FLOAT, DOUBLE        the shortest number that reads back the same
//	DECIMAL              a string, every digit kept
//	DATETIME, TIMESTAMP  RFC 3339 in UTC, with the column's fraction digits; the server's
//	                     own text if RFC 3339 has no such time, for example 0000-00-00 00:00:00.
//	                     A DATETIME has no time zone: it is taken as UTC
//	DATE, TIME           the server's text
//	JSON                 itself, line breaks removed; a string if it is not valid. The
//	                     JSON value null is the string "null" under the column's name
//	                     with "_json" added, because null is NULL
//	CHAR, TEXT, ENUM, SET, UUID, INET4, INET6 and any other
//	                     a string, or if it is not valid UTF-8 its bytes in base64 under
//	                     the column's name with "_base64" added
//	BINARY, BLOB, GEOMETRY, VECTOR
//	                     a string, the bytes in base64
//	NULL                 null
//
// An Encoder is immutable, and so safe for concurrent use.
type Encoder struct {
	fields []field
}

// field is a column with the parts that are the same in every row.
type field struct {
	name      string
	key       []byte // ,"name":
	base64Key []byte // ,"name_base64":
	jsonKey   []byte // ,"name_json":
	form      form
}

// form is the JSON form of a column's bytes.
type form uint8

const (
	asText form = iota
	asDigits
	asBits
	asTime
	asJSON
	asBase64
)

// NewEncoder returns an Encoder for rows of the columns.
//
// The rows must come from a prepared statement. A query without arguments, or
// with interpolateParams, uses the text protocol, in which the server cuts a
// FLOAT to six digits. The session must have time_zone '+00:00', the character set
// utf8mb4 and parseTime off.
func NewEncoder(columns []Column) *Encoder {
	e := &Encoder{fields: make([]field, len(columns))}
	for i, c := range columns {
		before := byte(',')
		if i == 0 {
			before = '{'
		}
		key := func(name string) []byte {
			return append(AppendString([]byte{before}, []byte(name)), ':')
		}
		e.fields[i] = field{name: c.Name, key: key(c.Name), base64Key: key(c.Name + "_base64"), jsonKey: key(c.Name + "_json"), form: c.form()}
	}
	return e
}

// IsBinary reports whether the column's values are base64 in the JSON of a row.
func (c Column) IsBinary() bool { return c.form() == asBase64 }

func (c Column) form() form {
	if c.IsJSON {
		return asJSON
	}
	switch c.DataType {
	case "tinyint", "smallint", "mediumint", "int", "bigint", "year":
		return asDigits
	case "bit":
		return asBits
	case "datetime", "timestamp":
		return asTime
	case "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector",
		"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
		"geomcollection", "geometrycollection":
		return asBase64
	}
	return asText
}

// AppendJSON appends the row to dst, without a line break. An error means that the values
// do not fit the columns; dst is then returned as it was.
func (e *Encoder) AppendJSON(dst []byte, values []any) ([]byte, error) {
	if len(values) != len(e.fields) {
		return dst, fmt.Errorf("table: a row of %d values for %d columns", len(values), len(e.fields))
	}
	if len(values) == 0 {
		return append(dst, "{}"...), nil
	}
	out := dst
	for i := range e.fields {
		var err error
		if out, err = e.fields[i].append(out, values[i]); err != nil {
			return dst, err
		}
	}
	return append(out, '}'), nil
}

// append appends the key and the value, which has one of the few types that the
// driver returns.
func (f *field) append(dst []byte, value any) ([]byte, error) {
	if b, ok := value.([]byte); ok {
		return f.appendBytes(dst, b)
	}
	dst = append(dst, f.key...)
	switch v := value.(type) {
	case nil:
		return append(dst, "null"...), nil
	case int64:
		return strconv.AppendInt(dst, v, 10), nil
	case uint64:
		return strconv.AppendUint(dst, v, 10), nil
	case float32:
		return appendFloat(dst, float64(v), 32), nil
	case float64:
		return appendFloat(dst, v, 64), nil
	}
	return dst, fmt.Errorf("table: column %s: a value of type %T (is parseTime on?)", ident.Quote(f.name), value)
}

func (f *field) appendBytes(dst, b []byte) ([]byte, error) {
	switch f.form {
	case asBase64:
		return appendBase64(append(dst, f.key...), b), nil
	case asText, asTime, asJSON:
		if !utf8.Valid(b) {
			return appendBase64(append(dst, f.base64Key...), b), nil
		}
	}
	if f.form == asJSON && bytes.Equal(bytes.Trim(b, " \t\n\r"), []byte("null")) {
		return append(append(dst, f.jsonKey...), `"null"`...), nil
	}
	dst = append(dst, f.key...)
	switch f.form {
	case asDigits:
		// The driver returns a BIGINT UNSIGNED that is too large for an int64 as digits.
		n, err := strconv.ParseUint(string(b), 10, 64)
		if err != nil {
			return dst, fmt.Errorf("table: column %s: %q is not an integer", ident.Quote(f.name), b)
		}
		return strconv.AppendUint(dst, n, 10), nil
	case asBits:
		if len(b) > 8 {
			return dst, fmt.Errorf("table: column %s: %d bytes are not a BIT", ident.Quote(f.name), len(b))
		}
		var n uint64
		for _, octet := range b {
			n = n<<8 | uint64(octet)
		}
		return strconv.AppendUint(dst, n, 10), nil
	case asTime:
		return appendTime(dst, b), nil
	case asJSON:
		if json.Valid(b) {
			return appendOneLine(dst, b), nil
		}
	}
	return AppendString(dst, b), nil
}

// appendFloat appends a number without an exponent if that is not too long.
func appendFloat(dst []byte, f float64, bits int) []byte {
	switch size := math.Abs(f); {
	case math.IsNaN(f) || math.IsInf(f, 0): // no column has them, and JSON has none
		return append(strconv.AppendFloat(append(dst, '"'), f, 'g', -1, bits), '"')
	case size != 0 && (size < 1e-6 || size >= 1e21):
		return strconv.AppendFloat(dst, f, 'e', -1, bits)
	}
	return strconv.AppendFloat(dst, f, 'f', -1, bits)
}

func appendBase64(dst, b []byte) []byte {
	return append(base64.StdEncoding.AppendEncode(append(dst, '"'), b), '"')
}

// appendOneLine copies valid JSON without its line breaks. These are always
// between its tokens, because within strings they are escaped.
func appendOneLine(dst, b []byte) []byte {
	for {
		i := bytes.IndexAny(b, "\n\r")
		if i < 0 {
			return append(dst, b...)
		}
		dst = append(dst, b[:i]...)
		b = b[i+1:]
	}
}
