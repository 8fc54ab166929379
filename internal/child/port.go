package child

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort returns a free port of the loopback address. It is below the range from which the system takes ports for outgoing
// connections: a port of that range could be taken when a stopped server wants it again, and a client that
// keeps dialling a stopped server there may connect to itself. No other test process gets the
// port as long as this process lives, even while nothing listens on it.
func FreePort() (int, error) {
	const low, high, attempts = 10000, 32000, 100
	for range attempts {
		if port := low + rand.IntN(high-low); claim(port) && PortIsFree(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("none of %d ports between %d and %d is free", attempts, low, high)
}

// PortIsFree reports whether nothing listens on the port.
func PortIsFree(port int) bool {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}
