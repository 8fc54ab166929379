// Package redact shows the URLs of brokers, webhooks and programs without their secrets.
package redact

import (
	"net/url"
	"strings"
)

// URL returns a URL without its password and without the values of parameters that may
// be secret. Of a text that is not a URL only the scheme stays.
func URL(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" {
		scheme, _, found := strings.Cut(text, ":")
		if !found || strings.ContainsAny(scheme, "/@ ") {
			return "***"
		}
		return scheme + ":***"
	}
	switch {
	case u.Scheme == "exec":
		return program(u)
	case u.Scheme == "file":
	case u.Opaque != "", strings.Contains(u.EscapedPath()+u.RawQuery+u.EscapedFragment(), "@"):
		// A password that contains a /, ? or # ends up in these parts.
		return u.Scheme + ":***"
	case (u.Scheme == "http" || u.Scheme == "https") && (strings.Trim(u.Path, "/") != "" || u.RawQuery != ""):
		return u.Scheme + "://" + u.Host + "/***" // the path of many webhooks is secret
	}
	if u.User != nil {
		name := u.User.Username()
		if _, has := u.User.Password(); !has { // a user alone may be a token
			name = ""
		}
		u.User = url.UserPassword(name, "xxx")
	}
	query := u.Query()
	for name := range query {
		if Secret(name) {
			query.Set(name, "xxx")
		}
	}
	u.RawQuery, u.Fragment = query.Encode(), "" // parameters that can't be parsed are omitted
	return strings.ReplaceAll(u.String(), "xxx", "***")
}

// program shows only the program, because its arguments may contain secrets.
func program(u *url.URL) string {
	text := u.Opaque
	if text == "" {
		text = u.Path
	} else if plain, err := url.PathUnescape(text); err == nil {
		text = plain
	} else {
		text, _, _ = strings.Cut(text, "%")
	}
	if args := strings.Fields(text); len(args) > 0 {
		return "exec:" + args[0]
	}
	return "exec:"
}

// Secret reports whether a parameter's value must not be shown.
func Secret(name string) bool {
	for _, word := range []string{"secret", "token", "password", "key-file", "auth", "apikey", "api_key", "signature"} {
		if strings.Contains(strings.ToLower(name), word) {
			return true
		}
	}
	return false
}
