// Package dsn parses the text by which a user names a server into the driver's
// configuration, and never shows the password in it.
//
// There are three ways to name a server:
//
//	user:password@tcp(host:3306)/database?timeout=5s       Parse: the driver's form
//	mysql://user:password@host:3306/database?timeout=5s    Parse: a URL
//	[client] host=... user=... password=...                FromDefaultsFile: a my.cnf
//
// No error of this package contains any part of a connection string, or a value
// from a defaults file: a password in the wrong place (an unescaped
// slash is enough) looks like a host, a port or a database. Instead an error names the
// part that is wrong and shows the expected form.
package dsn

import (
	"net"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"
)

const (
	defaultHost = "127.0.0.1"
	defaultPort = "3306"

	// forms ends every error of Parse.
	forms = "expected user:password@tcp(host:3306)/database, " +
		"user:password@unix(/path/to.sock)/database or mysql://user:password@host:3306/database"
)

// SyntaxError names the part of a connection string that is wrong. It contains nothing
// of the string. Use errors.As to distinguish a mistake in the input
// from a failure of the server.
type SyntaxError struct {
	// Problem names the part and what is wrong with it.
	Problem string
}

func (e *SyntaxError) Error() string { return "dsn: " + e.Problem + "; " + forms }

// Parse parses a connection string in the driver's form or as a URL.
//
// A string that begins with mysql:// or mariadb:// is a URL. Its user, password and
// database are percent-encoded. The default port is 3306, the default host
// 127.0.0.1. An IPv6 address is in brackets. For a Unix socket, omit the
// host (or write localhost) and add socket=/path to the parameters.
//
// Any other string is in the driver's form, for which the driver's rules hold:
// only the database and the parameters are percent-encoded.
//
// The parameters are the driver's in both forms (tls, timeout, readTimeout,
// collation, ...). A parameter that the driver doesn't know is a session
// variable, which is set on every new connection. Parse is stricter than the driver, to protect
// the password or because of likely mistakes. It refuses
//
//   - an @ behind the host, unless written %40: it ends a password with an
//     unescaped slash in it, or a string that lacks its /database;
//   - networks other than tcp, tcp4, tcp6 and unix, ports that are not numbers, and
//     hosts with a character that no host name has;
//   - a user, a password or a host among the parameters, and parameters without =;
//   - charsets and collations other than utf8..., because names and JSON are UTF-8;
//   - control characters, such as the line break behind a string read from a file.
//
// Every error is a *SyntaxError. The database may be missing.
func Parse(s string) (*mysql.Config, error) {
	if s == "" {
		return nil, &SyntaxError{"the connection string is empty"}
	}
	if strings.ContainsFunc(s, isControl) {
		return nil, &SyntaxError{"the connection string has a line break or another control character"}
	}
	if rest, ok := cutScheme(s); ok {
		return parseURL(rest)
	}
	return parseDriverForm(s)
}

// setAddress makes cfg connect to a socket if one is given, otherwise to host and
// port, which have defaults. Call it after cfg.TLS is set: a certificate is
// checked against the host, or against localhost on a socket.
func setAddress(cfg *mysql.Config, host, port, socket string) {
	if host == "" {
		host = defaultHost
	}
	if port == "" {
		port = defaultPort
	}
	cfg.Net, cfg.Addr = "tcp", net.JoinHostPort(host, port)
	if socket != "" {
		cfg.Net, cfg.Addr, host = "unix", socket, "localhost"
	}
	if cfg.TLS != nil && !cfg.TLS.InsecureSkipVerify {
		cfg.TLS.ServerName = host
	}
}

// isLocal reports whether a socket may be used for host.
func isLocal(host string) bool { return host == "" || host == "localhost" }

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }
