//go:build unix

package mysqltest

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockFile takes the advisory lock on the file at path, and creates the file if it is missing. Without wait it fails
// when another process holds the lock. The end of a process releases its lock.
func lockFile(path string, wait bool) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("mysqltest: open lock file: %w", err)
	}
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	for {
		err = syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("mysqltest: lock %s: %w", path, err)
	}
	return func() { _ = file.Close() }, nil
}
