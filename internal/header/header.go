// Package header knows which names of headers are mqnotify's own.
package header

import "strings"

// Prefix begins the names that are reserved, in capitals or not.
const Prefix = "mqnotify-"

// Reserved reports whether a header's name is reserved.
func Reserved(name string) bool {
	return len(name) >= len(Prefix) && strings.EqualFold(name[:len(Prefix)], Prefix)
}
