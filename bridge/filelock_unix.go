//go:build unix

package bridge

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockFile makes the file this process's to write, until it is closed. Two writers would
// write over each other's lines.
func lockFile(file *os.File) error {
	for {
		switch err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return fmt.Errorf("another process writes to %s: each topic and group needs a file of its own", file.Name())
		case err != nil && !errors.Is(err, syscall.ENOLCK) && !errors.Is(err, syscall.ENOTSUP): // some network's
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		return nil
	}
}

// moveFile renames a file that is open, and then closes it: the other way around another
// process could take the lock of what is about to go away.
func moveFile(file *os.File, to string) error {
	return errors.Join(os.Rename(file.Name(), to), closeFile(file))
}

// closeFile unlocks the file and closes it. If it were only closed, it would stay locked for a moment whenever
// another goroutine starts a program: the new process has the file open until it executes that program.
func closeFile(file *os.File) error {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN) // Close does the same, later
	return file.Close()
}
