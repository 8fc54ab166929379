package child

import (
	"fmt"
	"net"
	"sync"
)

// claims keep the ports of this process: Go closes a listener without references.
var claims sync.Map

// claim keeps the port from other test processes, and from another claim of this one, by the name of a
// socket without a file, which ends with the process.
func claim(port int) bool {
	listener, err := net.Listen("unix", fmt.Sprintf("@mqnotify-test-port-%d", port))
	if err != nil {
		return false
	}
	claims.Store(port, listener)
	return true
}
