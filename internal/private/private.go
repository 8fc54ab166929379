// Package private opens files with secrets, and refuses those that other users can read.
package private

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Mode is the permission of a file that its owner alone can use.
const Mode fs.FileMode = 0o600

// ErrReadable means that other users can read a file that has secrets.
var ErrReadable = errors.New("other users can read it")

// Check returns ErrReadable, with the command that repairs it, if other users have a permission on the file
// that mode does not contain. A group may read a file of root that this process, which is not root, may
// read. Check accepts pipes and devices, and everything on Windows.
func Check(name string, info fs.FileInfo, mode fs.FileMode) error {
	if info.Mode().IsRegular() && info.Mode().Perm()&others(info)&^mode != 0 {
		return fmt.Errorf("%s: %w: run chmod %o %s", name, ErrReadable, mode, name)
	}
	return nil
}

// ReadFile is os.ReadFile of a file that passes Check.
func ReadFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err == nil {
		err = Check(name, info, Mode)
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}
