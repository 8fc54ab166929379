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

// become does nothing, because a process can't become the parent of orphans here.
func become() {}

// attributes makes a group for the command.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// replace makes descriptor to a copy of descriptor from.
func replace(from, to int) error { return unix.Dup2(from, to) }

// descendants returns an error, because the tree is the command's group here.
func descendants() ([]int, error) { return nil, errors.ErrUnsupported }

// children returns none, because orphans are not known here.
func children() []int { return nil }
