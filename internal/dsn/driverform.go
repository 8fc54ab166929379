package dsn

import (
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// parseDriverForm parses s with the driver. It drops the driver's own errors, because they quote the
// text that is wrong. It checks the parts one by one to find the cause.
func parseDriverForm(s string) (*mysql.Config, error) {
	// The driver takes the last slash as the end of the address, too.
	slash := strings.LastIndexByte(s, '/')
	if slash < 0 {
		return nil, &SyntaxError{"there is no slash in front of the database" + otherScheme(s)}
	}
	database, params, _ := strings.Cut(s[slash+1:], "?")
	if strings.Contains(s[slash:], "@") {
		return nil, &SyntaxError{"there is an @ behind the last slash: if the slash is part of the password, " +
			"end the string with /database; in a database or a parameter write %40 for @" + otherScheme(s)}
	}
	params, secure, err := takeTLS(params)
	if err != nil {
		return nil, err
	}
	if err := checkParams(params); err != nil {
		return nil, err
	}
	if _, err := url.PathUnescape(database); err != nil {
		return nil, &SyntaxError{"the database is not percent-encoded: write % as %25"}
	}
	cfg, err := mysql.ParseDSN(s[:slash+1] + database + "?" + params)
	if err != nil || !validAddress(cfg.Net, cfg.Addr) {
		return nil, &SyntaxError{"the address between the password and the database is neither tcp(host:port), " +
			"with brackets around an IPv6 address, nor unix(/path)" + otherScheme(s)}
	}
	if strings.ContainsRune(cfg.DBName, 0) {
		return nil, &SyntaxError{"the database has a NUL character"}
	}
	return cfg, setTLS(cfg, secure)
}

// validAddress refuses all other networks, although a Go program could
// register its own with the driver. If a string was cut in the wrong place,
// the network is a part of the password, and a failing dial would show it.
func validAddress(network, address string) bool {
	switch network {
	case "unix":
		return true
	case "tcp", "tcp4", "tcp6":
		_, port, err := splitAddress(address)
		return err == nil && port != ""
	}
	return false
}

// otherScheme returns a hint for postgres:// and the like. It does not show the scheme, because in
// the driver's form it would be a user, with a password that begins with //.
func otherScheme(s string) string {
	if !strings.Contains(s, "://") {
		return ""
	}
	return " (as a URL it would have to begin with mysql:// or mariadb://)"
}
