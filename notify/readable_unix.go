//go:build unix

package notify

import "syscall"

// readable tells whether there is something to read, or the end, without taking it.
func readable(conn syscall.Conn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true // closed
	}
	var got error
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, _, got = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	})
	return err != nil || got != syscall.EAGAIN && got != syscall.EINTR
}
