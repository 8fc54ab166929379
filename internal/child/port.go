package child

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"time"
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

// PortIsFree reports whether nothing listens on the port. It connects instead of listening: a process that is forked in that moment
// would inherit the listener, and the port would be taken until the process's exec.
func PortIsFree(port int) bool {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(context.Background(), "tcp", loopback(port))
	if err == nil {
		_ = conn.Close() // it was only a question
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// Listen is net.Listen for an address on which something listened before. A process that was forked in that time keeps the
// closed listener open until its exec. Listen waits up to a minute for that.
func Listen(network, address string) (net.Listener, error) {
	listener, err := net.Listen(network, address)
	for begun := time.Now(); errors.Is(err, syscall.EADDRINUSE) && time.Since(begun) < time.Minute; listener, err = net.Listen(network, address) {
		<-time.After(time.Millisecond)
	}
	return listener, err
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
