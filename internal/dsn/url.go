package dsn

import (
	"net/netip"
	"net/url"
	"strings"
	"unicode"

	"github.com/go-sql-driver/mysql"
)

// cutScheme cuts mysql:// or mariadb://, in any case, off s. It accepts no other scheme:
// "user://x@tcp(host)/" is a user whose password begins with two slashes.
func cutScheme(s string) (rest string, ok bool) {
	scheme, rest, found := strings.Cut(s, "://")
	if found && (strings.EqualFold(scheme, "mysql") || strings.EqualFold(scheme, "mariadb")) {
		return rest, true
	}
	return s, false
}

// parseURL parses the text behind the scheme. It does not use url.Parse, whose
// errors quote the port, the host or the escape that is wrong, each of which may
// be a part of a password, and which parses user:12/34@host as the host "user",
// port 12.
func parseURL(s string) (*mysql.Config, error) {
	if strings.Contains(s, "#") {
		return nil, &SyntaxError{"there is a # in the URL: write it as %23"}
	}
	end := strings.IndexAny(s, "/?")
	if end < 0 {
		end = len(s)
	}
	authority, rest := s[:end], s[end:]
	if strings.Contains(rest, "@") {
		return nil, &SyntaxError{"there is an @ behind the host: in a password write / as %2F and ? as %3F, " +
			"in a database or a parameter write @ as %40"}
	}
	path, query, _ := strings.Cut(rest, "?")

	params, socket, err := takeSocket(query)
	if err != nil {
		return nil, err
	}
	params, secure, err := takeTLS(params)
	if err != nil {
		return nil, err
	}
	if err := checkParams(params); err != nil {
		return nil, err
	}
	cfg, err := mysql.ParseDSN("/?" + params)
	if err != nil {
		// Not reachable, because checkParams has accepted every parameter alone.
		return nil, &SyntaxError{"the parameters contradict one another"}
	}

	address := authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		address = authority[at+1:]
		user, password, _ := strings.Cut(authority[:at], ":")
		if cfg.User, err = decode("user", user); err != nil {
			return nil, err
		}
		if cfg.Passwd, err = decode("password", password); err != nil {
			return nil, err
		}
	}
	host, port, err := splitAddress(address)
	if err != nil {
		return nil, err
	}
	if socket != "" && !isLocal(host) {
		return nil, &SyntaxError{"there are both a host and a socket: leave out one of them"}
	}
	database := strings.TrimPrefix(path, "/")
	if strings.Contains(database, "/") {
		return nil, &SyntaxError{"there is a second slash behind the host: write it as %2F"}
	}
	if cfg.DBName, err = decode("database", database); err != nil {
		return nil, err
	}
	setAddress(cfg, host, port, socket)
	return cfg, setTLS(cfg, secure)
}

// takeSocket removes socket=... from the query. It encodes the slashes of the other parameters, because the
// driver would take a slash for the one before the database.
func takeSocket(query string) (params, socket string, err error) {
	var others []string
	for pair := range strings.SplitSeq(query, "&") {
		value, found := strings.CutPrefix(pair, "socket=")
		if !found {
			others = append(others, pair)
			continue
		}
		if socket, err = url.QueryUnescape(value); err != nil || socket == "" || strings.ContainsRune(socket, 0) {
			return "", "", &SyntaxError{"the parameter socket is not the path of a socket, percent-encoded"}
		}
	}
	return strings.ReplaceAll(strings.Join(others, "&"), "/", "%2F"), socket, nil
}

// decode decodes the percent-encoding of one part of the URL. It refuses a NUL, which would end the
// part early in the protocol, so that the rest would be read as something else.
func decode(part, s string) (string, error) {
	decoded, err := url.PathUnescape(s)
	if err != nil {
		return "", &SyntaxError{"the " + part + " is not percent-encoded: write % as %25"}
	}
	if strings.ContainsRune(decoded, 0) {
		return "", &SyntaxError{"the " + part + " has a NUL character"}
	}
	return decoded, nil
}

// splitAddress splits host:port. Both may be missing.
func splitAddress(s string) (host, port string, err error) {
	host, port, hasPort := strings.Cut(s, ":")
	if inner, found := strings.CutPrefix(s, "["); found {
		inner, after, closed := strings.Cut(inner, "]")
		host = strings.Replace(inner, "%25", "%", 1) // a zone, as in fe80::1%25eth0
		port, hasPort = strings.CutPrefix(after, ":")
		address, err := netip.ParseAddr(host)
		if err != nil || !address.Is6() || !closed || !hasPort && after != "" {
			return "", "", &SyntaxError{"the host in brackets is not an IPv6 address, or is not followed by the port"}
		}
	} else if strings.ContainsFunc(host, notInHost) {
		return "", "", &SyntaxError{"the host has a character that no host name has " +
			"(a URL has no tcp(...), and takes one host)"}
	}
	if hasPort && !validPort(port) {
		return "", "", &SyntaxError{"the port is not a number from 1 to 65535 " +
			"(in a password write / as %2F, around an IPv6 address add brackets)"}
	}
	return host, port, nil
}

func notInHost(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(".-_", r)
}
