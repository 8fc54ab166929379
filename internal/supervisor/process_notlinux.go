//go:build unix && !linux

package supervisor

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// executable returns the path of this program.
func executable() (string, error) { return os.Executable() }

// become does nothing: a process can't become the parent of orphans here.
func become() {}

// attributes makes the command's group.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// replace makes the descriptor to another one for what from is.
func replace(from, to int) error { return unix.Dup2(from, to) }

// descendants returns an error: the tree is the command's group.
func descendants() ([]int, error) { return nil, errors.ErrUnsupported }

// children returns none: orphans are not known here.
func children() []int { return nil }
