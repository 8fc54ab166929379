// Package lockname makes the names of advisory locks.
package lockname

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// Max is the length of the longest name of a lock that MySQL accepts, in characters.
const Max = 64

// Make returns the lock name for parts such as a purpose, a database and a topic. It has at most longest characters.
//
// The name is in lower case, because MySQL folds names to lower case and MariaDB does not. If a name can't contain the parts
// as they are, because of their characters or their length, it is shortened and gets a hash of all parts, so that different parts
// make different names on every server.
func Make(longest int, parts ...string) string {
	plain := "mqnotify:" + strings.Join(parts, ":")
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', strings.ContainsRune("_-.:", r):
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '_'
	}, plain)
	colons := strings.Count(plain, ":") != len(parts) // a colon in a part needs the hash: "a:b" is not "a", "b"
	if name == plain && len(name) <= longest && !colons {
		return name
	}
	sum := sha256.New()
	for _, part := range parts {
		sum.Write([]byte(strconv.Itoa(len(part)) + ":" + part))
	}
	hash := "#" + hex.EncodeToString(sum.Sum(nil))[:20]
	return name[:min(len(name), longest-len(hash))] + hash
}
