package table

import (
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// allBytes is every byte once, as SQL and as JSON.
func allBytes() (literal, want string) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for _, c := range all {
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return "X'" + b.String() + "'", `"` + base64.StdEncoding.EncodeToString(all) + `"`
}

type typeCase struct {
	column  string // its type
	value   string // SQL
	want    string // JSON
	mariadb string // MariaDB's, if it differs
}

func everyType() []typeCase {
	bytesLiteral, bytesJSON := allBytes()
	return []typeCase{
		{"TINYINT", "-128", `-128`, ""},
		{"TINYINT UNSIGNED", "255", `255`, ""},
		{"BOOL", "TRUE", `1`, ""},
		{"SMALLINT UNSIGNED", "65535", `65535`, ""},
		{"MEDIUMINT", "-8388608", `-8388608`, ""},
		{"MEDIUMINT UNSIGNED", "16777215", `16777215`, ""},
		{"INT", "-2147483648", `-2147483648`, ""},
		{"INT UNSIGNED", "4294967295", `4294967295`, ""},
		{"INT(8) ZEROFILL", "42", `42`, ""},
		{"BIGINT", "-9223372036854775808", `-9223372036854775808`, ""},
		{"BIGINT UNSIGNED", "18446744073709551615", `18446744073709551615`, ""},
		{"BIGINT UNSIGNED", "9223372036854775807", `9223372036854775807`, ""},
		{"YEAR", "2155", `2155`, ""},
		{"YEAR", "0", `0`, ""},
		{"BIT(1)", "1", `1`, ""},
		{"BIT(9)", "b'100000001'", `257`, ""},
		{"BIT(64)", "0xFFFFFFFFFFFFFFFF", `18446744073709551615`, ""},
		{"DECIMAL(65,30)", "-99999999999999999999999999999999999.999999999999999999999999999999",
			`"-99999999999999999999999999999999999.999999999999999999999999999999"`, ""},
		{"DECIMAL(5,2)", "1.5", `"1.50"`, ""},
		{"FLOAT", "1.1", `1.1`, ""},
		{"FLOAT", "16777217", `16777216`, ""},
		{"FLOAT", "1.2345678e0", `1.2345678`, ""}, // the text protocol would say 1.23457
		{"FLOAT", "-3.4028234663852886e38", `-3.4028235e+38`, ""},
		{"DOUBLE", "0.1e0 + 0.2e0", `0.30000000000000004`, ""},
		{"DOUBLE", "1.7976931348623157e308", `1.7976931348623157e+308`, ""},
		{"DOUBLE", "5e-324", `5e-324`, ""},
		{"DOUBLE", "1e20", `100000000000000000000`, ""},
		{"DATE", "'2024-02-29'", `"2024-02-29"`, ""},
		{"DATE", "'0000-00-00'", `"0000-00-00"`, ""},
		{"DATETIME", "'9999-12-31 23:59:59'", `"9999-12-31T23:59:59Z"`, ""},
		{"DATETIME(3)", "'2024-02-29 01:02:03.4'", `"2024-02-29T01:02:03.400Z"`, ""},
		{"DATETIME(6)", "'1000-01-01 00:00:00.000001'", `"1000-01-01T00:00:00.000001Z"`, ""},
		{"DATETIME(6)", "'2024-01-01'", `"2024-01-01T00:00:00.000000Z"`, ""},
		{"DATETIME", "'0000-00-00'", `"0000-00-00 00:00:00"`, ""},
		{"DATETIME(2)", "'2024-00-00'", `"2024-00-00 00:00:00.00"`, ""},
		{"DATETIME", "'2023-02-31 01:00:00'", `"2023-02-31 01:00:00"`, ""},
		{"TIMESTAMP NULL", "'2024-07-01 12:00:00'", `"2024-07-01T12:00:00Z"`, ""},
		{"TIMESTAMP(6) NULL", "'2038-01-19 03:14:07.999999'", `"2038-01-19T03:14:07.999999Z"`, ""},
		{"TIMESTAMP NULL", "0", `"0000-00-00 00:00:00"`, ""},
		{"TIME", "'-00:00:01'", `"-00:00:01"`, ""},
		// MySQL's limit is a whole second.
		{"TIME(6)", "'-838:59:59.999999'", `"-838:59:59.000000"`, `"-838:59:59.999999"`},
		{"TIME(6)", "'-838:59:58.999999'", `"-838:59:58.999999"`, ""},
		{"TIME(3)", "0", `"00:00:00.000"`, ""},
		// MySQL keeps a document, MariaDB the text.
		{"JSON", `'{"b":[1,{"ö":"\\u00e9\\n😀"}],"a":18446744073709551615}'`,
			`{"a": 18446744073709551615, "b": [1, {"ö": "é\n😀"}]}`,
			`{"b":[1,{"ö":"\u00e9\n😀"}],"a":18446744073709551615}`},
		{"JSON", `'{\n  "a": 1.10\n}'`, `{"a": 1.1}`, `{  "a": 1.10}`},
		{"JSON", `'"text"'`, `"text"`, ""},
		{"JSON", `'null'`, jsonNull, ""},
		{"JSON", `' null\n'`, jsonNull, ""},
		{"JSON", `'[null]'`, `[null]`, ""},
		{"CHAR(5)", "'a '", `"a"`, ""},
		{"CHAR(0)", "''", `""`, ""},
		{"VARCHAR(20)", "''", `""`, ""},
		{"VARCHAR(20)", `'<a&b> "\\"'`, `"<a&b> \"\\\""`, ""},
		{"VARCHAR(20) CHARACTER SET latin1", "'é€'", `"é€"`, ""},
		{"VARCHAR(20) CHARACTER SET utf16", "'é😀'", `"é😀"`, ""},
		{"TINYTEXT", "'👩‍👩‍👧'", `"👩‍👩‍👧"`, ""},
		{"TEXT", "'two\\nlines\\0'", `"two\nlines\u0000"`, ""},
		{"LONGTEXT COLLATE utf8mb4_bin", "'{}'", `"{}"`, ""}, // no JSON, though the same type on MariaDB
		{"ENUM('x','it''s, \"é\"')", "2", `"it's, \"é\""`, ""},
		{"ENUM('x')", "'not there'", `""`, ""},
		{"SET('a','b','c')", "'c,a'", `"a,c"`, ""},
		{"SET('a')", "''", `""`, ""},
		{"BINARY(3)", "'a'", `"YQAA"`, ""},
		{"VARBINARY(300)", bytesLiteral, bytesJSON, ""},
		{"VARBINARY(3)", "''", `""`, ""},
		{"TINYBLOB", "'text'", `"dGV4dA=="`, ""},
		{"LONGBLOB", bytesLiteral, bytesJSON, ""},
		// The server's form: four bytes of SRID, then WKB.
		{"GEOMETRY", "ST_GeomFromText('POINT(1 2)')", `"AAAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA=="`, ""},
		{"POINT", "ST_GeomFromText('POINT(1 2)')", `"AAAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA=="`, ""},
		{"GEOMETRYCOLLECTION", "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))')",
			`"AAAAAAEHAAAAAQAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA=="`, ""},
	}
}

// jsonNull is the value null of a JSON column, which differs from NULL.
const jsonNull = "JSON null"

// newerTypes are types that only some servers have.
func newerTypes(s *mysqltest.Server) []typeCase {
	var cases []typeCase
	if s.IsMariaDB() {
		cases = append(cases,
			typeCase{"UUID", "'123E4567-e89b-12d3-a456-426614174000'", `"123e4567-e89b-12d3-a456-426614174000"`, ""},
			typeCase{"INET6", "'::ffff:192.0.2.1'", `"::ffff:192.0.2.1"`, ""},
			typeCase{"INET4", "'192.0.2.1'", `"192.0.2.1"`, ""},
			typeCase{"BLOB COMPRESSED", "'a'", `"YQ=="`, ""},
			typeCase{"TEXT COMPRESSED", "'a'", `"a"`, ""},
		)
	}
	switch {
	case s.Name() == "mysql-9.7":
		cases = append(cases, typeCase{"VECTOR(2)", "TO_VECTOR('[1,2]')", `"AACAPwAAAEA="`, ""})
	case s.Name() == "mariadb-11.8":
		cases = append(cases, typeCase{"VECTOR(2)", "Vec_FromText('[1,2]')", `"AACAPwAAAEA="`, ""})
	}
	return cases
}

func TestEveryTypeComesOutFaithfully(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		conn := open(t, s.Database(t))
		// Old tables may contain a zero date, an invalid date and an ENUM's error value, which servers no longer accept.
		mysqltest.ExecAll(t, conn, "SET sql_mode = 'ALLOW_INVALID_DATES'")
		for _, test := range append(everyType(), newerTypes(s)...) {
			t.Run(test.column, func(t *testing.T) {
				mysqltest.ExecAll(t, conn, "DROP TABLE IF EXISTS t",
					"CREATE TABLE t (id INT PRIMARY KEY, c "+test.column+") CHARACTER SET utf8mb4",
					"INSERT INTO t VALUES (1, "+test.value+"), (2, NULL)")
				want := test.want
				if s.IsMariaDB() && test.mariadb != "" {
					want = test.mariadb
				}
				lines := readAll(t, conn, describe(t, conn, "t"))
				require.Len(t, lines, 2)
				if want == jsonNull {
					assert.Equal(t, `{"id":1,"c_json":"null"}`, lines[0])
				} else {
					assert.Equal(t, `{"id":1,"c":`+want+`}`, lines[0])
				}
				assert.Equal(t, `{"id":2,"c":null}`, lines[1])
			})
		}
	})
}

// readAll returns the table's rows as JSON, which it checks.
func readAll(t *testing.T, conn *sql.Conn, table *Table) []string {
	t.Helper()
	var names []string
	for _, c := range table.Columns {
		names = append(names, ident.Quote(c.Name))
	}
	ctx := testContext(t)
	stmt, err := conn.PrepareContext(ctx, "SELECT "+strings.Join(names, ", ")+" FROM "+table.String()+" ORDER BY 1")
	require.NoError(t, err)
	defer stmt.Close()
	rows, err := stmt.QueryContext(ctx)
	require.NoError(t, err)
	defer rows.Close()
	values, pointers := make([]any, len(names)), make([]any, len(names))
	for i := range values {
		pointers[i] = &values[i]
	}
	encoder := NewEncoder(table.Columns)
	var lines []string
	for rows.Next() {
		require.NoError(t, rows.Scan(pointers...))
		line, err := encoder.AppendJSON(nil, values)
		require.NoError(t, err)
		require.NotContains(t, string(line), "\n")
		decoder := json.NewDecoder(strings.NewReader(string(line)))
		decoder.UseNumber()
		var object map[string]any
		require.NoError(t, decoder.Decode(&object), "%s", line)
		for _, c := range table.Columns {
			if _, isNull := object[c.Name+"_json"]; !isNull {
				require.Contains(t, object, c.Name)
			}
		}
		lines = append(lines, string(line))
	}
	require.NoError(t, rows.Err())
	return lines
}

// oddNames are legal, and each would break a statement or a line in which it is not quoted correctly.
var oddNames = []string{
	"a`b", "``", `"`, `it's "it"`, "two words", " leading", "a.b", "a/b", `back\slash`, "line\nbreak", "tab\t!", "?",
	"straße", "таблица", "日本語", "select", "t`; DROP TABLE victim; -- x", "<b>&amp;", "%s", strings.Repeat("é", 64),
}

func TestOddNames(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		conn := open(t, s.Database(t))
		mysqltest.ExecAll(t, conn, "CREATE TABLE victim (id INT)")
		for i, name := range oddNames {
			t.Run(name, func(t *testing.T) {
				column := oddNames[(i+1)%len(oddNames)]
				mysqltest.ExecAll(t, conn, "CREATE TABLE "+ident.Quote(name)+" ("+ident.Quote(column)+
					" INT AUTO_INCREMENT PRIMARY KEY, "+ident.Quote(name)+" JSON)",
					"INSERT INTO "+ident.Quote(name)+" VALUES (7, '[]')")
				table := describe(t, conn, name)
				assert.Equal(t, name, table.Name)
				key, err := table.KeyColumn("")
				require.NoError(t, err)
				assert.Equal(t, column, key.Name)
				assert.True(t, table.Columns[1].IsJSON)
				var object map[string]any
				lines := readAll(t, conn, table)
				require.Len(t, lines, 1)
				require.NoError(t, json.Unmarshal([]byte(lines[0]), &object))
				assert.Equal(t, map[string]any{column: 7.0, name: []any{}}, object)
				next, known, err := NextAutoIncrement(testContext(t), conn, table)
				require.NoError(t, err)
				assert.True(t, known)
				assert.EqualValues(t, 8, next)
			})
		}
		describe(t, conn, "victim")
	})
}
