//go:build !unix

package notify

import "syscall"

func readable(syscall.Conn) bool { return false }
