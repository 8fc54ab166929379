//go:build unix

package notify

import "syscall"

const canPeek = true

// peek returns nil when there is something to read, or the end of the stream,
// without taking it. The read deadline ends it with an error.
func peek(conn syscall.RawConn) error {
	var one [1]byte
	return conn.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK)
		return err != syscall.EAGAIN && err != syscall.EINTR // not ready: the runtime waits and asks again
	})
}
