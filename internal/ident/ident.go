// Package ident checks and quotes the names of databases, tables and columns.
//
// It is the only place that turns a name into SQL. A name that a user gives is
// checked once, where it enters (Check), and quoted wherever it is written into
// a statement (Quote). Values are parameters and never come here, but for those in
// a trigger's body, which takes none (Literal).
package ident

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxLength is the longest name that MySQL and MariaDB take, in characters.
const MaxLength = 64

// InvalidError says why a name can't name anything on a server, and what to do
// about it. It is what Check returns, so that a caller can tell a mistake in
// what was typed (errors.As) from a failure of the server.
type InvalidError struct {
	// Name is the name as it was given; it may hold anything.
	Name string
	// Problem is what is wrong with it, and the remedy.
	Problem string
}

// Error shows the name escaped and cut short, so that neither a control
// character nor a megabyte of text reaches the terminal.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("name %s: %s", shown(e.Name), e.Problem)
}

// Check returns nil if name can be the name of a database, table or column, and
// an *InvalidError otherwise. Whether it exists is the server's to say.
//
// Odd names are legal, and pass: with backticks, quotes, spaces inside or in
// front, dots, slashes, control characters, any letter of the Basic
// Multilingual Plane, or a whole SQL statement as a name.
//
// Some of what is refused here must be, since a server does not refuse it:
// MySQL 9.7 takes an emoji for a question mark and cuts a name at the first
// byte that is no UTF-8, and then works on another table without a word.
func Check(name string) error {
	var problem string
	switch {
	case name == "":
		problem = "it is empty; give the name of a table, column or database"
	case !utf8.ValidString(name):
		problem = "it is not valid UTF-8; check the encoding of the terminal or file that it came from"
	case strings.ContainsRune(name, 0):
		problem = "it has a NUL character, which no name can have; remove it"
	case strings.ContainsFunc(name, supplementary):
		problem = "it has a character beyond U+FFFF (an emoji, for instance); " +
			"servers keep names in utf8mb3, which has none of these, so no table can have this name"
	case utf8.RuneCountInString(name) > MaxLength:
		problem = fmt.Sprintf("it has %d characters; servers take at most %d, so shorten it",
			utf8.RuneCountInString(name), MaxLength)
	case strings.TrimRight(name, " \t\n\v\f\r") != name:
		problem = "it ends in a space or a line break, which no name can; remove what follows its last letter"
	default:
		return nil
	}
	return &InvalidError{Name: name, Problem: problem}
}

// Quote writes name as a quoted identifier: between backticks, those inside
// doubled. It works under every sql_mode, ANSI_QUOTES included, and never fails:
// Check the name where it comes from.
//
// It relies on a connection in UTF-8, the default, which package dsn insists on in
// charset= and collation=: in GBK or Shift-JIS a backtick can be the second
// byte of a letter, and a crafted name could then end the quotes.
func Quote(name string) string {
	return "`" + strings.ReplaceAll(name, "`", "``") + "`"
}

// Derived is a name for something that belongs to a table: prefix and the table's name. What is past MaxLength
// characters is cut and told apart by a hash.
func Derived(prefix, table string) string {
	name := []rune(prefix + table)
	if len(name) <= MaxLength {
		return string(name)
	}
	hash := fmt.Sprintf("_%x", sha256.Sum256([]byte(table)))[:9]
	return string(name[:MaxLength-len(hash)]) + hash
}

// Literal is a string literal for a trigger's body. Hexadecimal where a quote or a
// backslash could be read in two ways: what they mean depends on the session's
// sql_mode.
func Literal(s string) string {
	if strings.ContainsAny(s, `'\\`) {
		return fmt.Sprintf("CONVERT(X'%X' USING utf8mb4)", s)
	}
	return "'" + s + "'"
}

func supplementary(r rune) bool { return r > 0xFFFF }

// shown quotes a name for a message, at most MaxLength characters of it.
func shown(name string) string {
	n := 0
	for i := range name {
		if n++; n > MaxLength {
			return fmt.Sprintf("%q...", name[:i])
		}
	}
	return fmt.Sprintf("%q", name)
}
