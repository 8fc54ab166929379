package core

import (
	"fmt"

	"github.com/mqnotify/mqnotify/internal/lockname"
)

// LockName returns a lock's name for parts such as a purpose, a database and a topic. All databases of a server share one name space
// of advisory locks, so the database must be a part.
//
// Names are in lower case, because MySQL folds them and MariaDB distinguishes capitals. A name that can't be written so, or in 64
// characters, is shortened and gets a hash of the parts, so that different parts make different names on both servers.
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
