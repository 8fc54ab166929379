// Package loopback tells addresses of this machine alone from those that others can reach.
package loopback

import (
	"net"
	"strings"
)

// Is reports whether a host, with a port or without, is this machine by its own name or by a loopback address. A name that
// someone else's DNS resolves to 127.0.0.1 is not.
func Is(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
