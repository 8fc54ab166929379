// Package ident checks and quotes the names of databases, tables and columns.
//
// It is the only package that turns a name into SQL. A name that a user gives is
// checked once, where it enters (Check), and quoted wherever it is written into
// a statement (Quote). Values are parameters and never come here, except those in
// a trigger's body, which can't have parameters (Literal).
package ident

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxLength is the length of the longest name that MySQL and MariaDB accept, in characters.
const MaxLength = 64

// ErrOptions is the error of all packages for an invalid option or argument.
var ErrOptions = errors.New("wrong option")

// InvalidError is the error of Check, an [ErrOptions]: why no server can have something of this name, and the remedy.
type InvalidError struct {
	// Name is the name as it was given; it may contain any bytes.
	Name string
	// Problem is what is wrong with the name, and the remedy.
	Problem string
}

// Error returns a text with the name escaped and shortened, so that neither a control
// character nor a megabyte of text reaches the terminal.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("name %s: %s", shown(e.Name), e.Problem)
}

// Is makes an InvalidError an ErrOptions.
func (e *InvalidError) Is(target error) bool { return target == ErrOptions }

// Check returns nil if name can be the name of a database, table or column, and
// an *InvalidError otherwise. It does not check whether it exists.
//
// Odd names are legal, and pass: with backticks, quotes, spaces inside or at the
// beginning, dots, slashes, control characters, any letter of the Basic
// Multilingual Plane, or a whole SQL statement as a name.
//
// Check must refuse some names because a server does not refuse them:
// MySQL 9.7 takes an emoji for a question mark and cuts a name at the first
// byte that is not UTF-8, and then works on another table without an error.
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

// Quote returns name as a quoted identifier: between backticks, with those inside
// doubled. It is right under every sql_mode, ANSI_QUOTES included. It accepts every name:
// call Check where the name enters.
//
// It requires a connection in UTF-8, the default, which package dsn enforces in
// charset= and collation=. In GBK or Shift-JIS a backtick can be the second
// byte of a letter, and a crafted name could then end the quotes.
func Quote(name string) string {
	return "`" + strings.ReplaceAll(name, "`", "``") + "`"
}

// Derived returns a name for something that belongs to a table: prefix and the table's name. A name longer than MaxLength
// characters is shortened and gets a hash of the table's name.
func Derived(prefix, table string) string {
	name := []rune(prefix + table)
	if len(name) <= MaxLength {
		return string(name)
	}
	hash := fmt.Sprintf("_%x", sha256.Sum256([]byte(table)))[:9]
	return string(name[:MaxLength-len(hash)]) + hash
}

// Literal returns a string literal for a trigger's body. It is hexadecimal if s has a quote or a
// backslash, because their meaning depends on the session's sql_mode.
func Literal(s string) string {
	if strings.ContainsAny(s, `'\\`) {
		return fmt.Sprintf("CONVERT(X'%X' USING utf8mb4)", s)
	}
	return "'" + s + "'"
}

func supplementary(r rune) bool { return r > 0xFFFF }

// shown quotes at most MaxLength characters of a name for a message.
func shown(name string) string {
	n := 0
	for i := range name {
		if n++; n > MaxLength {
			return fmt.Sprintf("%q...", name[:i])
		}
	}
	return fmt.Sprintf("%q", name)
}
