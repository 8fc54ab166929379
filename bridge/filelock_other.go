//go:build !unix

package bridge

import (
	"errors"
	"os"
)

// lockFile locks nothing here.
func lockFile(*os.File) error { return nil }

// moveFile closes a file and renames it: what is open can't be renamed everywhere.
func moveFile(file *os.File, to string) error {
	return errors.Join(file.Close(), os.Rename(file.Name(), to))
}

// closeFile closes the file.
func closeFile(file *os.File) error { return file.Close() }
