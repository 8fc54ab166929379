// Package name checks the names that users give to queues, locks and the like, which are values in tables.
package name

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Problem returns what is wrong with a name, and the remedy, or an empty text for a valid name. most is the maximum number of
// characters. Problem refuses spaces at the end, because servers ignore them in comparisons and two such names would be one.
func Problem(name string, most int) string {
	switch {
	case name == "":
		return "it is empty; give one"
	case !utf8.ValidString(name):
		return "it is not valid UTF-8; encode it, in hexadecimal for instance"
	case strings.ContainsRune(name, 0):
		return "it has a NUL character; remove it"
	case strings.TrimSpace(name) != name:
		return "it begins or ends with a space; remove it"
	case utf8.RuneCountInString(name) > most:
		return fmt.Sprintf("it has %d characters, and the limit is %d: shorten it, or use a hash of it", utf8.RuneCountInString(name), most)
	}
	return ""
}
