package dsn

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// FuzzParse: any string gives either a configuration that the driver accepts or a
// SyntaxError, and the redacted string does not contain the password.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "/", "u:p@ss:word@tcp(host", "u:passw/ord@tcp([::1]:3306)/db?tls=true&timeout=5s&x=%27y%27",
		"u:p@unix(/my.sock)/db?charset=utf8mb4,utf8&collation=utf8mb4_bin", "/?strict=1", "/?loc=UTC&=&tls",
		"mysql://u:p%40@[fe80::1%25eth0]:3306/db?loc=Europe/Berlin", "mariadb://u@/?socket=/my.sock&tls=1",
		"mysql://u:p@h:99999/a/b#c", "postgres://u:p@h/db", "mysql://tcp(h:1)/", "u:p@tcp6(::1)/d%2Fb",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		redacted := Redact(s)
		if again := Redact(redacted); again != redacted {
			t.Fatalf("Redact(%q) = %q, and redacted again %q", s, redacted, again)
		}
		cfg, err := Parse(s)
		if err != nil {
			if !errors.As(err, new(*SyntaxError)) || cfg != nil {
				t.Fatalf("Parse(%q) = %v, %v", s, cfg, err)
			}
			return
		}
		if _, err := mysql.NewConnector(cfg); err != nil {
			t.Fatalf("the driver refuses what Parse(%q) returned: %v", s, err)
		}
		if strings.ContainsRune(cfg.User+cfg.Passwd+cfg.DBName+cfg.Addr, 0) || !validAddress(cfg.Net, cfg.Addr) {
			t.Fatalf("Parse(%q) = %+v", s, cfg)
		}
		elsewhere := cfg.User + " " + cfg.Net + "(" + cfg.Addr + ")/" + cfg.DBName + " " + s[max(0, strings.LastIndex(s, "@")):]
		if len(cfg.Passwd) >= 8 && strings.Contains(redacted, cfg.Passwd) && !strings.Contains(elsewhere, cfg.Passwd) {
			t.Fatalf("Redact(%q) = %q", s, redacted)
		}
	})
}

// encode percent-encodes every character that may have a meaning in a URL.
func encode(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// FuzzURL: the parts of a URL are parsed as they were written, and the parameters mean the
// same as in the driver's form.
func FuzzURL(f *testing.F) {
	f.Add("u", "p", "db", uint16(3306), "tls=true&timeout=5s")
	f.Add("größe", "p@ss:w/o?r#d%", "a/b c", uint16(1), "sql_mode=%27ANSI%27&x=a+b")
	f.Add("", "", "", uint16(65535), "charset=gbk")
	f.Add("@", ":", "@:?", uint16(33060), "timeout=5&&=&tls&user=x")
	f.Fuzz(func(t *testing.T, user, password, database string, port uint16, params string) {
		if port == 0 || strings.ContainsRune(user+password+database, 0) {
			t.Skip("refused, see TestParseErrorsNameThePartAndNoPassword")
		}
		s := "mysql://" + encode(user) + ":" + encode(password) + "@db:" + strconv.Itoa(int(port)) + "/" + encode(database)
		cfg, err := Parse(s)
		if err != nil {
			t.Fatalf("Parse(%q): %v", s, err)
		}
		if cfg.User != user || cfg.Passwd != password || cfg.DBName != database ||
			cfg.Net != "tcp" || cfg.Addr != "db:"+strconv.Itoa(int(port)) {
			t.Fatalf("Parse(%q) = %+v", s, cfg)
		}

		if strings.ContainsAny(params, "/#") || strings.Contains(params, "socket=") {
			return // these differ: a slash ends the address in the driver's form
		}
		ofURL, err1 := Parse("mysql://db/x?" + params)
		ofDriver, err2 := Parse("tcp(db:3306)/x?" + params)
		if (err1 == nil) != (err2 == nil) || err1 == nil && ofURL.FormatDSN() != ofDriver.FormatDSN() {
			t.Fatalf("parameters %q: %v (%v) as a URL, %v (%v) in the driver's form", params, ofURL, err1, ofDriver, err2)
		}
	})
}

// FuzzPassword: wherever a password is in a string, well-formed or not, no
// error and no result of Redact shows any part of it.
func FuzzPassword(f *testing.F) {
	const mark = "Qz7" // begins and ends the password, and occurs in no message
	raw := func(s string) string { return s }
	templates := []struct {
		text   string // USER and PASSWORD stand for themselves
		encode func(string) string
	}{
		{"USER:PASSWORD@tcp(host:3306)/db?timeout=5s", raw},
		{"USER:PASSWORD@unix(/my.sock)/db", raw},
		{"USER:PASSWORD@tcp(host:3306)", raw},
		{"USER:PASSWORD@tcp(host/db", raw},
		{"USER:PASSWORD@tcp(host", raw},
		{"USER:PASSWORD@host:3306/db", raw},
		{"USER:PASSWORD@/db?timeout=5", raw},
		{"USER:PASSWORD@", raw},
		{"USER:PASSWORD", raw},
		{":PASSWORD@/", raw},
		{"dial USER:PASSWORD@tcp(host:3306)/db: refused", raw},
		{"mysql://USER:PASSWORD@host:3306/db?timeout=5s", raw},
		{"mysql://USER:PASSWORD@host:3306/db?timeout=5s", encode},
		{"mysql://USER:PASSWORD@host/db?timeout=5", encode},
		{"mysql://USER:PASSWORD@/db?socket=/my.sock", raw},
		{"mysql://USER:PASSWORD@tcp(host:3306)/db", raw},
		{"mysql://USER:PASSWORD@host:port/db", raw},
		{"mysql://USER:PASSWORD", raw},
		{"mysql://host:3306/db?user=USER&password=PASSWORD", encode},
		{"mysql://host/db?user=USER&password=PASSWORD", raw},
		{"postgres://USER:PASSWORD@host/db", raw},
	}
	for _, password := range []string{
		"", "@", ":", "/", "?", "#", "%", "%zz", "@tcp(h:1)/", "1/", "/1", "@h/", "\n", "?tls=", "://", "&x=", "(", ")/", "é",
	} {
		f.Add("user", password)
		f.Add("mysql", password)
		f.Add("tcp(h:1)/", password)
	}
	f.Fuzz(func(t *testing.T, user, password string) {
		password = mark + password + mark
		between := mark + "x" + mark
		if strings.Contains(user, mark) || strings.Contains(between, user+mark) {
			t.Skip("the mark has to mean the password")
		}
		for _, template := range templates {
			shown := template.encode(password)
			s := strings.NewReplacer("USER", user, "PASSWORD", shown).Replace(template.text)
			if _, err := Parse(s); err != nil && strings.Contains(err.Error(), mark) {
				t.Fatalf("Parse(%q): %v", s, err)
			}
			if redacted := Redact(s); strings.Contains(redacted, shown) {
				t.Fatalf("Redact(%q) = %q", s, redacted)
			}
		}
	})
}

// FuzzDefaultsFile: a password that is written as the manual says is read
// unchanged; whatever else the file contains, an error does not show it.
func FuzzDefaultsFile(f *testing.F) {
	f.Add("p", "user=u")
	f.Add("a#b ' \" \\ \t \r \n", "[mysql]\nhost=::1\nport=1 # c\nprotocol=tcp")
	f.Add(" spaces ", "socket=/my.sock\nssl-mode=REQUIRED\ntls-version=TLSv1.3")
	f.Add("", "[client\nport=x\nskip-ssl=2\npass\n'\"\\\x00")
	f.Add(`\s\q\\`, "ssl-verify-server-cert\nenable-ssl=0\nloose_database = 'a\\sb' # c")
	const mark = "Qz7"
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\t", `\t`, "\b", `\b`)
	path := filepath.Join(f.TempDir(), "my.cnf")
	f.Fuzz(func(t *testing.T, password, more string) {
		if strings.ContainsRune(password, 0) || strings.ContainsAny(more, "!/") {
			t.Skip("no other file is to be read")
		}
		password = mark + password + mark
		line := `password="` + escape.Replace(password) + `" # the password` + "\n"
		if err := os.WriteFile(path, []byte("[client]\n"+line), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := FromDefaultsFile(path)
		if err != nil || cfg.Passwd != password {
			t.Fatalf("%q: %v, %v", line, cfg, err)
		}

		for _, content := range []string{"[client]\n" + line + more, more + "\n" + line} {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, err := FromDefaultsFile(path)
			if err != nil {
				if strings.Contains(err.Error(), mark) {
					t.Fatalf("%q: %v", content, err)
				}
				continue
			}
			if _, err := mysql.NewConnector(cfg); err != nil {
				t.Fatalf("%q: the driver refuses the configuration: %v", content, err)
			}
		}
	})
}
