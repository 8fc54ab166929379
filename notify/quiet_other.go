//go:build !unix

package notify

import (
	"errors"
	"syscall"
)

// Without a way to look at a socket and leave what is there, touches alone tell.
const canPeek = false

func peek(syscall.RawConn) error { return errors.ErrUnsupported }
