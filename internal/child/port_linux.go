package child

import (
	"fmt"
	"net"
	"sync"
)

// claims keeps the claimed sockets referenced, because Go closes a listener without references.
var claims sync.Map

// claim claims the port against other test processes, and against a second claim of this one, by the name of an abstract
// Unix socket, which ends with the process.
func claim(port int) bool {
	listener, err := net.Listen("unix", fmt.Sprintf("@mqnotify-test-port-%d", port))
	if err != nil {
		return false
	}
	claims.Store(port, listener)
	return true
}
