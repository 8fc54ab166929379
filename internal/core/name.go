package core

import (
	"fmt"
	"strings"

	"github.com/mqnotify/mqnotify/internal/lockname"
	"github.com/mqnotify/mqnotify/internal/server"
)

// LockName returns a lock's name for parts such as a purpose, a database and a topic. All databases of a server share one name space
// of advisory locks, so the database must be a part.
//
// Names are in lower case, because MySQL folds them and MariaDB distinguishes capitals. A name that can't be written so, or in 64
// characters, is shortened and gets a hash of the parts, so that different parts make different names on both servers.
func LockName(parts ...string) string { return lockname.Make(lockname.Max, parts...) }

// Folded returns the name of a database or a table as a part of a lock's name. A server that ignores the case of such names finds the
// database by any spelling, and all programs must take the same lock.
func Folded(caps *server.Capabilities, name string) string {
	if caps.LowerCaseTableNames != 0 {
		return strings.ToLower(name)
	}
	return name
}

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
