// Package dsn turns what a user writes to name a server into the driver's
// configuration, without ever showing the password that is in it.
//
// There are three ways to name a server:
//
//	user:password@tcp(host:3306)/database?timeout=5s       Parse: the driver's form
//	mysql://user:password@host:3306/database?timeout=5s    Parse: a URL
//	[client] host=... user=... password=...                FromDefaultsFile: a my.cnf
//
// No error of this package holds any part of a connection string, nor a value
// from a defaults file: a password that is in the wrong place (an unescaped
// slash is enough) looks like a host, a port or a database. An error names the
// part that is wrong and shows the form that is expected instead.
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

// SyntaxError says which part of a connection string is wrong. It never holds
// any of the string. Find it with errors.As to tell a mistake in what was typed
// from a failure of the server.
type SyntaxError struct {
	// Problem names the part and what is wrong with it.
	Problem string
}

func (e *SyntaxError) Error() string { return "dsn: " + e.Problem + "; " + forms }

// Parse reads a connection string in the driver's form or as a URL.
//
// A string that begins with mysql:// or mariadb:// is a URL. User, password and
// database are percent-encoded in it; the port is 3306 if absent, the host
// 127.0.0.1; an IPv6 address stands in brackets. For a Unix socket, leave the
// host out (or write localhost) and add socket=/path to the parameters.
//
// Anything else is in the driver's form, for which the driver's rules hold:
// nothing is encoded but the database and the parameters.
//
// The parameters are the driver's in both forms (tls, timeout, readTimeout,
// collation, ...). As there, one that the driver doesn't know is a session
// variable, which is set on each new connection. Stricter than the driver, for
// the password's sake or because it can only be a mistake, Parse refuses
//
//   - an @ behind the host, unless written %40: it ends a password with an
//     unescaped slash in it, or a string that lacks its /database;
//   - networks other than tcp, tcp4, tcp6 and unix, ports that are no number, and
//     hosts with a character that no host name has;
//   - a user, a password or a host among the parameters, and parameters without =;
//   - charsets and collations other than utf8...: names and JSON are UTF-8;
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

// setAddress makes cfg connect to a socket if one is given, else to host and
// port, which have defaults. It must come after cfg.TLS is set: a certificate is
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

// isLocal reports whether a socket may stand for host.
func isLocal(host string) bool { return host == "" || host == "localhost" }

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }
