//go:build !unix

package bridge

import (
	"errors"
	"os"
)

// lockFile does nothing: this system has no flock.
func lockFile(*os.File) error { return nil }

// moveFile closes a file and then renames it, because some systems can't rename an open file.
func moveFile(file *os.File, to string) error {
	return errors.Join(file.Close(), os.Rename(file.Name(), to))
}

func closeFile(file *os.File) error { return file.Close() }
