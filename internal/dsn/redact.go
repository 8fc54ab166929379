package dsn

import (
	"strings"

	"github.com/go-sql-driver/mysql"
)

const hidden = "***"

// Format writes where cfg connects to, for logs: user, address and database in
// the driver's form. Password and parameters are left out.
func Format(cfg *mysql.Config) string {
	shown := mysql.NewConfig()
	shown.User, shown.Net, shown.Addr, shown.DBName = cfg.User, cfg.Net, cfg.Addr, cfg.DBName
	return shown.FormatDSN()
}

// Redact returns the connection string s with *** for its password, to be shown
// to people. The rest of a string that Parse accepts stays as it is. Of any other
// string only the parts that surely are no password stay, at most the scheme and the
// user, because the end of the password is unknown.
func Redact(s string) string {
	rest, _ := cutScheme(s)
	scheme := s[:len(s)-len(rest)]
	user, _, hasColon := strings.Cut(rest, ":")
	at := strings.LastIndexByte(rest, '@')

	cfg, err := Parse(s)
	switch {
	case err == nil && !hasColon:
		return s
	case err == nil && at >= 0 && !colonOutside(cfg, rest[at+1:]):
		if at < len(user) { // the colon is that of host:port
			return s
		}
		return scheme + user + ":" + hidden + rest[at:]
	case hasColon && !strings.ContainsFunc(user, notInHost):
		// Malformed, or without an @: in host:3306/database host and port may
		// as well be a user and the beginning of a password.
		return scheme + user + ":" + hidden
	}
	return scheme + hidden
}

// colonOutside reports whether there is a colon in s, which follows the @, that
// is not of the host and port which were read from it. It may be the one between
// user and password, where the user is such as "admin@server".
func colonOutside(cfg *mysql.Config, s string) bool {
	if cfg.Net != "unix" {
		s = strings.Replace(s, cfg.Addr, "", 1)
	}
	return strings.Contains(s, ":")
}
