package dsn_test

import (
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"

	"github.com/mqnotify/mqnotify/internal/dsn"
)

func TestRedact(t *testing.T) {
	for input, want := range map[string]string{
		// Well-formed: everything but the password stays.
		"u:s3cret@tcp(db:3306)/shop?timeout=5s":     "u:***@tcp(db:3306)/shop?timeout=5s",
		"u:s3:cr@e/t@tcp(db:3306)/shop":             "u:***@tcp(db:3306)/shop",
		":s3cret@tcp(db:3306)/shop":                 ":***@tcp(db:3306)/shop",
		"u:@unix(/run/my.sock)/shop":                "u:***@unix(/run/my.sock)/shop",
		"u@tcp(db:3306)/shop":                       "u@tcp(db:3306)/shop",
		"/shop":                                     "/shop",
		"user://s3cret@tcp(db:1)/shop":              "user:***@tcp(db:1)/shop",
		"mysql://u:s3cret@db:3306/shop?timeout=5s":  "mysql://u:***@db:3306/shop?timeout=5s",
		"MariaDB://u:s3@cret:x@[::1]:3306/shop":     "MariaDB://u:***@[::1]:3306/shop",
		"mysql://u:s3%2Fcret@/shop?socket=/my.sock": "mysql://u:***@/shop?socket=/my.sock",
		"mysql://first.last@db:3306/shop":           "mysql://first.last@db:3306/shop",
		"mysql://db/shop":                           "mysql://db/shop",
		"dial u:s3cret@tcp(db:1)/shop: refused":     "***",
		// Well-formed, but without an @ it may be the beginning of something else.
		"mysql://u:1234":        "mysql://u:***",
		"mysql://u:12/s3cret":   "mysql://u:***",
		"tcp(db:3306)/shop":     "***",
		"admin@/:s3cret":        "***",
		"a:b@/:s3cret":          "a:***",
		"admin@unix(:s3cret)/x": "***",
		"mysql://u@[::1]/shop":  "mysql://***", // by the port that is not there
		// Malformed: only parts stay that can't be a password.
		"":                                     "***",
		"s3cret":                               "***",
		"u:s3cret":                             "u:***",
		"u:s3@cret:word@tcp(host":              "u:***",
		"u:s3cret@db/shop":                     "u:***",
		"u:s3/cret@tcp(db:3306)":               "u:***",
		"mysql://u:s3/cret@db/shop":            "mysql://u:***",
		"mysql://u:s3#cret@db/shop":            "mysql://u:***",
		"mysql://u:s3cret%zz@db/shop":          "mysql://u:***",
		"mysql://u:s3cret@tcp(db:1)/shop":      "mysql://u:***",
		"mysql://u@db:1/shop?password=s3cret":  "mysql://***",
		"mysql://db/?user=u&password=s3cret":   "mysql://***",
		"postgres://u:s3cret@db/shop":          "postgres:***",
		"jdbc:mysql://db/?password=s3cret":     "jdbc:***",
		"Server=db;Pwd=s3cret;Data Source=a:b": "***",
		"host=db password=s3cret":              "***",
	} {
		t.Run(input, func(t *testing.T) {
			got := dsn.Redact(input)
			assert.Equal(t, want, got)
			assert.Equal(t, got, dsn.Redact(got), "redacting twice must change nothing more")
		})
	}
}

func TestFormat(t *testing.T) {
	for want, cfg := range map[string]*mysql.Config{
		"u@tcp(db:3306)/shop":    {User: "u", Passwd: "s3cret", Net: "tcp", Addr: "db:3306", DBName: "shop"},
		"u@unix(/my.sock)/a%2Fb": {User: "u", Passwd: "s3cret", Net: "unix", Addr: "/my.sock", DBName: "a/b"},
		"tcp(db:3306)/":          {Net: "tcp", Addr: "db:3306", Params: map[string]string{"x": "s3cret"}},
		"/":                      {Passwd: "s3cret"},
	} {
		assert.Equal(t, want, dsn.Format(cfg))
	}
}

func ExampleRedact() {
	fmt.Println(dsn.Redact("mysql://app:secret@db.example/shop"))
	fmt.Println(dsn.Redact("app:se/cret@tcp(db.example)")) // lacks its /database
	// Output:
	// mysql://app:***@db.example/shop
	// app:***
}
