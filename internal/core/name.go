package core

import (
	"fmt"

	"github.com/mqnotify/mqnotify/internal/lockname"
)

// LockName makes a lock's name out of parts, such as a purpose, a database and a
// topic. The name space of advisory locks is the server's, so the database
// belongs into the name.
//
// Names are in lower case, which MySQL folds to and MariaDB tells from capitals.
// What can't be said so, or in 64 characters, is cut and told apart by a hash of
// the parts: different parts make different names, on both.
func LockName(parts ...string) string { return lockname.Make(lockname.Max, parts...) }

func checkLockName(name string) error {
	if name == "" || len(name) > lockname.Max {
		return fmt.Errorf("notify: %w: lock name %q: it has 1 to 64 printable ASCII characters, no capitals", ErrOptions, name)
	}
	for _, r := range name {
		if r <= ' ' || r > '~' || r >= 'A' && r <= 'Z' {
			return fmt.Errorf("notify: %w: lock name %q: it has 1 to 64 printable ASCII characters, no capitals", ErrOptions, name)
		}
	}
	return nil
}
