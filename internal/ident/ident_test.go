package ident_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// Each of these was created as a table, a column and a database on MySQL 9.7 and
// MariaDB 10.11.
var legal = []string{
	"orders", "a", "1", "1e5", "Größe", "注文", " leading", "two words",
	"a`b", "`", "``", `a"b'c`, `back\slash`, "dot.ted", "sl/ash", "#sql-x", "%s",
	"; DROP TABLE users; -- x", "`; DROP TABLE users; -- x",
	"\x01", "tab\tinside", "\uffff", "\ufffd", "e\u0301", "no-break\u00a0",
	strings.Repeat("a", 64), strings.Repeat("é", 64),
}

func TestCheckAcceptsValidNames(t *testing.T) {
	for _, name := range legal {
		assert.NoError(t, ident.Check(name), "%q", name)
	}
}

func TestCheckRefusesWithRemedy(t *testing.T) {
	for _, test := range []struct{ name, shown, remedy string }{
		{"", `name "": `, "give the name"},
		{strings.Repeat("a", 65), `aaa"...: `, "it has 65 characters; servers take at most 64, so shorten it"},
		{strings.Repeat("é", 65), `ééé"...: `, "65 characters"},
		{"a\x00b", `name "a\x00b": `, "NUL character"},
		{"\x00", `name "\x00": `, "remove it"},
		{"orders ", `name "orders ": `, "remove what follows its last letter"},
		{" ", `name " ": `, "ends in a space"},
		{"orders\n", `name "orders\n": `, "line break"},
		{"orders\t", `name "orders\t": `, "ends in a space"},
		{"a😀b", `name "a😀b": `, "beyond U+FFFF"},
		{"a\xffb", `name "a\xffb": `, "not valid UTF-8"},
	} {
		err := ident.Check(test.name)
		require.Error(t, err, "%q", test.name)
		assert.Contains(t, err.Error(), test.shown)
		assert.Contains(t, err.Error(), test.remedy)

		var invalid *ident.InvalidError
		require.ErrorAs(t, err, &invalid)
		assert.Equal(t, test.name, invalid.Name)
	}
}

func TestCheckErrorStaysShort(t *testing.T) {
	require.ErrorIs(t, ident.Check(""), ident.ErrOptions)
	err := ident.Check(strings.Repeat("é\x1b", 1<<20))
	require.Error(t, err)
	assert.Less(t, len(err.Error()), 600)
	assert.NotContains(t, err.Error(), "\x1b", "an escape sequence must not reach the terminal")
}

func TestQuote(t *testing.T) {
	for name, want := range map[string]string{
		"orders":              "`orders`",
		"":                    "``",
		"a`b":                 "`a``b`",
		"`":                   "````",
		"`; DROP TABLE x; --": "```; DROP TABLE x; --`",
		`a"b'c\`:              "`a\"b'c\\`",
	} {
		assert.Equal(t, want, ident.Quote(name))
	}
}

// A derived name is valid for a table's name of any length, and differs between tables.
func TestDerived(t *testing.T) {
	assert.Equal(t, "mqnotify_orders", ident.Derived("mqnotify_", "orders"))
	long := strings.Repeat("é", 63)
	a, b := ident.Derived("mqnotify_", long+"a"), ident.Derived("mqnotify_", long+"b")
	assert.NotEqual(t, a, b)
	assert.NoError(t, ident.Check(a))
	assert.True(t, strings.HasPrefix(a, "mqnotify_éé"))
}

// A literal has no character whose meaning depends on sql_mode.
func TestLiteral(t *testing.T) {
	assert.Equal(t, `'größe "x"'`, ident.Literal(`größe "x"`))
	assert.Equal(t, "CONVERT(X'612762' USING utf8mb4)", ident.Literal("a'b"))
	assert.Equal(t, "CONVERT(X'5C' USING utf8mb4)", ident.Literal(`\`))
}

// FuzzQuote parses the quoted name as the server's lexer does (a
// backtick ends the identifier unless another follows): the identifier must be
// the name, and nothing may follow it.
func FuzzQuote(f *testing.F) {
	for _, name := range legal {
		f.Add(name)
	}
	f.Add("")
	f.Add("a\x00b")
	f.Add("a\xff`")
	f.Add("ends in a backtick`")
	f.Fuzz(func(t *testing.T, name string) {
		got, rest := lex(t, ident.Quote(name)+" x")
		if got != name || rest != " x" {
			t.Fatalf("Quote(%q) is read as %q, and %q is left", name, got, rest)
		}
	})
}

// lex reads one quoted identifier at the start of sql.
func lex(t *testing.T, sql string) (name, rest string) {
	t.Helper()
	require.Equal(t, byte('`'), sql[0])
	var b strings.Builder
	for i := 1; i < len(sql); i++ {
		switch {
		case sql[i] != '`':
			b.WriteByte(sql[i])
		case i+1 < len(sql) && sql[i+1] == '`':
			b.WriteByte('`')
			i++
		default:
			return b.String(), sql[i+1:]
		}
	}
	t.Fatalf("the identifier in %q never ends", sql)
	return "", ""
}

// FuzzCheck: an accepted name has no character that a server refuses or misreads,
// and an error contains nothing that controls a terminal.
func FuzzCheck(f *testing.F) {
	for _, name := range append([]string{"", "a ", "a\x00", "😀", "\xff", strings.Repeat("é", 65)}, legal...) {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if err := ident.Check(name); err != nil {
			for _, r := range err.Error() {
				if r < ' ' || r == 0x7f {
					t.Fatalf("control character %q in the message for %q", r, name)
				}
			}
			return
		}
		runes := []rune(name)
		if len(runes) == 0 || len(runes) > 64 || string(runes) != name {
			t.Fatalf("accepted %q", name)
		}
		for _, r := range runes {
			if r == 0 || r > 0xFFFF {
				t.Fatalf("accepted %q with %q", name, r)
			}
		}
		if strings.ContainsRune(" \t\n\v\f\r", runes[len(runes)-1]) {
			t.Fatalf("accepted %q", name)
		}
	})
}

func ExampleQuote() {
	fmt.Println("SELECT MAX(id) FROM " + ident.Quote("odd`name"))
	// Output: SELECT MAX(id) FROM `odd``name`
}

func ExampleCheck() {
	fmt.Println(ident.Check("orders "))
	// Output: name "orders ": it ends in a space or a line break, which no name can; remove what follows its last letter
}
