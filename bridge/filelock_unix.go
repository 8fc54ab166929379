//go:build unix

package bridge

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockFile locks the file until it is closed, because two writers would overwrite each other's lines.
func lockFile(file *os.File) error {
	for {
		switch err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return fmt.Errorf("another process writes to %s: each topic and group needs a file of its own", file.Name())
		case err != nil && !errors.Is(err, syscall.ENOLCK) && !errors.Is(err, syscall.ENOTSUP): // some network file systems have no locks
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		return nil
	}
}

// moveFile renames an open file and then closes it. In the other order another process could lock the file just before the rename.
func moveFile(file *os.File, to string) error {
	return errors.Join(os.Rename(file.Name(), to), closeFile(file))
}

// closeFile unlocks the file and then closes it. Close alone would leave it locked for a moment if another goroutine starts a program,
// because the new process has a copy of the open file until it executes that program.
func closeFile(file *os.File) error {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN) // Close also unlocks, but maybe later
	return file.Close()
}
