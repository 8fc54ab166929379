package notify

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrLockName is returned for a lock name that servers would not take alike.
var ErrLockName = errors.New("a lock name has 1 to 64 printable ASCII characters, no capitals")

const maxLockName = 64 // characters, on MySQL

// LockName makes a lock's name out of parts, such as a purpose, a database and a
// topic. The name space of advisory locks is the server's, so the database
// belongs into the name.
//
// Names are in lower case, which MySQL folds to and MariaDB tells from capitals.
// What can't be said so, or in 64 characters, is cut and told apart by a hash of
// the parts: different parts make different names, on both.
func LockName(parts ...string) string { return lockName(maxLockName, parts) }

// lockName is LockName in at most longest characters, for a name that others begin
// with.
func lockName(longest int, parts []string) string {
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
	colons := strings.Count(plain, ":") != len(parts) // a part has one: "a:b" is not "a", "b"
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

func checkLockName(name string) error {
	if name == "" || len(name) > maxLockName {
		return fmt.Errorf("notify: lock name %q: %w", name, ErrLockName)
	}
	for _, r := range name {
		if r <= ' ' || r > '~' || r >= 'A' && r <= 'Z' {
			return fmt.Errorf("notify: lock name %q: %w", name, ErrLockName)
		}
	}
	return nil
}
