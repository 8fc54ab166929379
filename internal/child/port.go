package child

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort finds a port of the loopback below the range from which the system takes ports for outgoing
// connections: one from that range could be gone when a stopped server wants it again, and a client that
// keeps dialling a stopped server there can end up connected to itself. No other test process gets the
// port as long as this one lives, also while nothing listens there.
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
