package dsn

import (
	"strings"

	"github.com/go-sql-driver/mysql"
)

const (
	wantBool     = "true or false"
	wantDuration = "a duration with its unit, such as 5s or 500ms"
	wantUTF8     = "utf8mb4 or another that begins with utf8, since names and JSON are UTF-8"
)

// known has the driver's parameters, and a description of their values for messages.
var known = map[string]string{
	"allowAllFiles":            wantBool,
	"allowCleartextPasswords":  wantBool,
	"allowFallbackToPlaintext": wantBool,
	"allowNativePasswords":     wantBool,
	"allowOldPasswords":        wantBool,
	"charset":                  wantUTF8,
	"checkConnLiveness":        wantBool,
	"clientFoundRows":          wantBool,
	"collation":                wantUTF8,
	"columnsWithAlias":         wantBool,
	"compress":                 wantBool,
	"connectionAttributes":     "key:value pairs with commas between them, percent-encoded",
	"interpolateParams":        wantBool,
	"loc":                      "a time zone, such as UTC or Europe%2FBerlin",
	"maxAllowedPacket":         "a number of bytes",
	"multiStatements":          wantBool,
	"parseTime":                wantBool,
	"readTimeout":              wantDuration,
	"rejectReadOnly":           wantBool,
	"serverPubKey":             "the name of a key that the program has registered",
	"timeTruncate":             wantDuration,
	"timeout":                  wantDuration,
	"tls":                      TLSForms,
	"writeTimeout":             wantDuration,
}

// misplaced has parameters of other libraries, and the remedy. As session variables they would
// fail at best; SET password=... changes the user's password.
var misplaced = map[string]string{
	"user":     "write the user in front of the @",
	"username": "write the user in front of the @",
	"password": "write the password in front of the @",
	"passwd":   "write the password in front of the @",
	"pwd":      "write the password in front of the @",
	"host":     "write the host behind the @",
	"port":     "write the port behind the host",
	"socket":   "write unix(/path/to.sock) as the address",
	"database": "write the database behind the slash",
	"dbname":   "write the database behind the slash",
	"strict":   "the driver no longer has it; set sql_mode",
}

// checkParams parses each of the parameters alone, so that an error can name the
// one that is wrong. It shows only names from the tables above, because any other name may
// be the rest of a password with a question mark in it.
func checkParams(params string) error {
	for pair := range strings.SplitSeq(params, "&") {
		if pair == "" {
			continue
		}
		name, value, hasValue := strings.Cut(pair, "=")
		shown := "a parameter that the driver does not know, and that is therefore a session variable,"
		want, isKnown := known[name]
		if isKnown {
			shown = "the parameter " + name
		}
		if remedy, found := misplaced[strings.ToLower(name)]; found {
			return &SyntaxError{"the parameter " + strings.ToLower(name) + " has no place here: " + remedy}
		}
		if !hasValue || name == "" {
			return &SyntaxError{shown + " has no name or no value: write name=value"}
		}
		if (name == "charset" || name == "collation") && !isUTF8(value) {
			return &SyntaxError{"the parameter " + name + " takes " + want}
		}
		if _, err := mysql.ParseDSN("/?" + pair); err != nil {
			if !isKnown {
				want = "a percent-encoded value: write % as %25"
			}
			return &SyntaxError{shown + " takes " + want}
		}
	}
	return nil
}

// isUTF8 reports whether all charsets in a list with commas are
// UTF-8. In some others (GBK, Shift-JIS) a quoted name could end its own quotes.
func isUTF8(charsets string) bool {
	for charset := range strings.SplitSeq(charsets, ",") {
		if !strings.HasPrefix(strings.ToLower(charset), "utf8") {
			return false
		}
	}
	return true
}
