package table

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func appendOne(t testing.TB, c Column, value any) string {
	t.Helper()
	line, err := NewEncoder([]Column{c}).AppendJSON(nil, []any{value})
	require.NoError(t, err)
	return string(line)
}

func TestValuesAsJSON(t *testing.T) {
	for _, test := range []struct {
		dataType string
		value    any
		want     string
	}{
		{"bigint", int64(math.MinInt64), `-9223372036854775808`},
		{"bigint", []byte("18446744073709551615"), `18446744073709551615`},
		{"bigint", uint64(math.MaxUint64), `18446744073709551615`},
		{"float", float32(1.1), `1.1`},
		{"float", float32(3.4028235e38), `3.4028235e+38`},
		{"double", 0.1 + 0.2000000000000001, `0.3000000000000001`},
		{"double", 1e-7, `1e-07`},
		{"double", 0.000001, `0.000001`},
		{"double", 1e21, `1e+21`},
		{"double", 123456789012345678.0, `123456789012345680`},
		{"double", math.Copysign(0, -1), `-0`},
		{"double", math.Inf(1), `"+Inf"`},
		{"bit", []byte{}, `0`},
		{"bit", []byte{1, 0}, `256`},
		{"bit", bytes.Repeat([]byte{255}, 8), `18446744073709551615`},
		{"datetime", []byte("2024-02-29 23:59:59"), `"2024-02-29T23:59:59Z"`},
		{"datetime", []byte("2000-02-29 00:00:00.5"), `"2000-02-29T00:00:00.5Z"`},
		{"timestamp", []byte("1999-12-31 00:00:00.000000"), `"1999-12-31T00:00:00.000000Z"`},
		{"datetime", []byte("2023-02-29 00:00:00"), `"2023-02-29 00:00:00"`},
		{"datetime", []byte("1900-02-29 00:00:00"), `"1900-02-29 00:00:00"`},
		{"datetime", []byte("2023-04-31 00:00:00"), `"2023-04-31 00:00:00"`},
		{"datetime", []byte("2023-00-01 00:00:00"), `"2023-00-01 00:00:00"`},
		{"datetime", []byte("2023-01-00 00:00:00"), `"2023-01-00 00:00:00"`},
		{"datetime", []byte("2023-01-01 00:00:00."), `"2023-01-01 00:00:00."`},
		{"datetime", []byte("2023-01-01 00-00-00"), `"2023-01-01 00-00-00"`},
		{"datetime", []byte("never"), `"never"`},
		{"json", []byte(`{"a": [1.10, "\n"]}`), `{"a": [1.10, "\n"]}`},
		{"json", []byte("{\n \"a\":\r\n1\n}"), `{ "a":1}`},
		{"json", []byte("[null]"), `[null]`},
		{"json", []byte("{'a': 1}"), `"{'a': 1}"`},
		{"json", []byte("[\"a\nb\"]"), `"[\"a\nb\"]"`}, // sloppy servers let it in; a string then
		{"varchar", []byte(`<a href="x">&\` + "\x00\x1f\x7f\u2028é😀"), `"<a href=\"x\">&\\\u0000\u001f` + "\x7f\u2028é😀" + `"`},
		{"varchar", []byte("\t\r\n"), `"\t\r\n"`},
		{"varchar", []byte{}, `""`},
		{"varchar", nil, `null`},
		{"blob", []byte{}, `""`},
		{"blob", []byte{0, 255}, `"AP8="`},
		{"blob", nil, `null`},
		{"some_new_type", []byte("text"), `"text"`},
		{"some_new_type", int64(5), `5`},
	} {
		got := appendOne(t, Column{Name: "c", DataType: test.dataType, IsJSON: test.dataType == "json"}, test.value)
		assert.Equal(t, `{"c":`+strings.ReplaceAll(test.want, "\n", `\n`)+`}`, got, "%s %v", test.dataType, test.value)
		assert.True(t, json.Valid([]byte(got)), got)
	}
}

func TestInvalidUTF8IsBase64UnderANameOfItsOwn(t *testing.T) {
	for _, c := range []Column{{Name: `a"b`, DataType: "text"}, {Name: `a"b`, DataType: "json", IsJSON: true}} {
		assert.Equal(t, `{"a\"b_base64":"Iv8i"}`, appendOne(t, c, []byte("\"\xff\"")))
	}
}

func TestRowIsOneObjectInTheColumnsOrder(t *testing.T) {
	e := NewEncoder([]Column{{Name: "z", DataType: "int"}, {Name: "<&>\n\\", DataType: "text"}, {Name: "a", DataType: "int"}})
	line, err := e.AppendJSON([]byte("before "), []any{int64(1), []byte("x"), nil})
	require.NoError(t, err)
	assert.Equal(t, `before {"z":1,"<&>\n\\":"x","a":null}`, string(line))

	line, err = NewEncoder(nil).AppendJSON(nil, nil)
	require.NoError(t, err)
	assert.Equal(t, `{}`, string(line))
}

func TestValuesOfTheWrongTypeChangeNothing(t *testing.T) {
	for _, test := range []struct {
		dataType string
		values   []any
		want     string
	}{
		{"int", nil, "a row of 0 values for 1 columns"},
		{"int", []any{[]byte("12a")}, "column `c`: \"12a\" is not an integer"},
		{"bit", []any{make([]byte, 9)}, "column `c`: 9 bytes are not a BIT"},
		{"datetime", []any{time.Now()}, "column `c`: a value of type time.Time (is parseTime on?)"},
	} {
		line, err := NewEncoder([]Column{{Name: "c", DataType: test.dataType}}).AppendJSON([]byte("before"), test.values)
		assert.ErrorContains(t, err, test.want)
		assert.Equal(t, "before", string(line))
	}
}

// Whatever bytes a column holds, the line is one valid JSON object on one line,
// from which the bytes can be restored.
func FuzzAppendJSON(f *testing.F) {
	for _, seed := range []string{"", "text", "{\"a\":\n1}", "0000-00-00 00:00:00", "2024-01-01 00:00:00.000001", "\xff", "\"\\\x00", "17", "null", " null\n"} {
		f.Add("name", []byte(seed))
	}
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		if !utf8.ValidString(name) {
			return // the server knows no such names
		}
		for _, dataType := range []string{"varchar", "datetime", "json", "longblob"} {
			line := []byte(appendOne(t, Column{Name: name, DataType: dataType, IsJSON: dataType == "json"}, b))
			require.NotContains(t, string(line), "\n")
			var object map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(line, &object), "%s", line)
			require.Len(t, object, 1)
			value, ok := object[name]
			if isNull, null := object[name+"_json"]; null && dataType == "json" {
				require.Equal(t, `"null"`, string(isNull))
				require.Equal(t, "null", strings.TrimSpace(string(b)))
				continue
			}
			if !ok {
				require.False(t, utf8.Valid(b))
				value = object[name+"_base64"]
			}
			if dataType == "json" && json.Valid(b) && utf8.Valid(b) {
				var want, got bytes.Buffer
				require.NoError(t, json.Compact(&want, b))
				require.NoError(t, json.Compact(&got, value))
				require.Equal(t, want.String(), got.String())
				continue
			}
			var text string
			require.NoError(t, json.Unmarshal(value, &text), "%s", line)
			switch {
			case dataType == "longblob" || !ok:
				decoded, err := base64.StdEncoding.DecodeString(text)
				require.NoError(t, err)
				require.Equal(t, string(b), string(decoded))
			case dataType == "datetime" && text != string(b):
				stamp, err := time.Parse(time.RFC3339Nano, text)
				require.NoError(t, err)
				require.Equal(t, string(b), stamp.Format("2006-01-02 15:04:05.000000")[:len(b)])
			default:
				require.Equal(t, string(b), text)
			}
		}
	})
}
