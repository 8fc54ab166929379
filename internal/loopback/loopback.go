// Package loopback recognises addresses that only this machine can reach.
package loopback

import (
	"net"
	"strings"
)

// Is reports whether a host, with or without a port, is localhost or a loopback address. A name that DNS resolves to
// 127.0.0.1 is not, because someone else controls it.
func Is(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
