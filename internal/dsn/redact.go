package dsn

import (
	"strings"

	"github.com/go-sql-driver/mysql"
)

const hidden = "***"

// Redact returns the connection string s with *** in place of the password, to be shown
// to people. The rest of a string that Parse accepts stays as it is. Of any other
// string only the parts stay that can't be a password, at most the scheme and the
// user, because it is unknown where the password ends.
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
		if at < len(user) { // the colon separates host and port
			return s
		}
		return scheme + user + ":" + hidden + rest[at:]
	case hasColon && !strings.ContainsFunc(user, notInHost):
		// Malformed, or without an @: in host:3306/database, host and port may also
		// be a user and the beginning of a password.
		return scheme + user + ":" + hidden
	}
	return scheme + hidden
}

// colonOutside reports whether s, the text after the @, has a colon outside the host and port that were
// parsed from it. Such a colon may separate
// user and password, if the user is a name such as "admin@server".
func colonOutside(cfg *mysql.Config, s string) bool {
	if cfg.Net != "unix" {
		s = strings.Replace(s, cfg.Addr, "", 1)
	}
	return strings.Contains(s, ":")
}
