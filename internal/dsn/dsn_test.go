package dsn_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/dsn"
)

func TestParseAddresses(t *testing.T) {
	for input, want := range map[string]mysql.Config{
		// The driver's form.
		"u:p@tcp(db:3307)/shop":               {User: "u", Passwd: "p", Net: "tcp", Addr: "db:3307", DBName: "shop"},
		"u@tcp(db)/shop":                      {User: "u", Net: "tcp", Addr: "db:3306", DBName: "shop"},
		"u:p@/shop":                           {User: "u", Passwd: "p", Net: "tcp", Addr: "127.0.0.1:3306", DBName: "shop"},
		"/shop":                               {Net: "tcp", Addr: "127.0.0.1:3306", DBName: "shop"},
		"/":                                   {Net: "tcp", Addr: "127.0.0.1:3306"},
		"u:p@unix(/run/my.sock)/shop":         {User: "u", Passwd: "p", Net: "unix", Addr: "/run/my.sock", DBName: "shop"},
		"u:p@tcp([::1]:3306)/shop":            {User: "u", Passwd: "p", Net: "tcp", Addr: "[::1]:3306", DBName: "shop"},
		"u:p@tcp6([fe80::1%eth0]:3306)/shop":  {User: "u", Passwd: "p", Net: "tcp6", Addr: "[fe80::1%eth0]:3306", DBName: "shop"},
		"u:p@ss:w/rd@tcp(db:1)/odd%2Fname%40": {User: "u", Passwd: "p@ss:w/rd", Net: "tcp", Addr: "db:1", DBName: "odd/name@"},
		"user://x@tcp(db:1)/shop":             {User: "user", Passwd: "//x", Net: "tcp", Addr: "db:1", DBName: "shop"},
		"u:mysql://x@tcp(db:1)/shop":          {User: "u", Passwd: "mysql://x", Net: "tcp", Addr: "db:1", DBName: "shop"},
		"u:p@tcp(db:1)/shop?":                 {User: "u", Passwd: "p", Net: "tcp", Addr: "db:1", DBName: "shop"},
		// URLs.
		"mysql://u:p@db:3307/shop":               {User: "u", Passwd: "p", Net: "tcp", Addr: "db:3307", DBName: "shop"},
		"mariadb://u:p@db/shop":                  {User: "u", Passwd: "p", Net: "tcp", Addr: "db:3306", DBName: "shop"},
		"MySQL://u@db":                           {User: "u", Net: "tcp", Addr: "db:3306"},
		"mysql://":                               {Net: "tcp", Addr: "127.0.0.1:3306"},
		"mysql://db/shop":                        {Net: "tcp", Addr: "db:3306", DBName: "shop"},
		"mysql://u:p@[::1]/shop":                 {User: "u", Passwd: "p", Net: "tcp", Addr: "[::1]:3306", DBName: "shop"},
		"mysql://u:p@[2001:db8::1]:3307/":        {User: "u", Passwd: "p", Net: "tcp", Addr: "[2001:db8::1]:3307"},
		"mysql://u:p@[fe80::1%25eth0]:3307/":     {User: "u", Passwd: "p", Net: "tcp", Addr: "[fe80::1%eth0]:3307"},
		"mysql://u%3A:%2F%3F%23%40%3A%25@db/%2F": {User: "u:", Passwd: "/?#@:%", Net: "tcp", Addr: "db:3306", DBName: "/"},
		"mysql://u:p@ss:word+x@db/a+b":           {User: "u", Passwd: "p@ss:word+x", Net: "tcp", Addr: "db:3306", DBName: "a+b"},
		"mysql://größe:p@bücher.example/köln":    {User: "größe", Passwd: "p", Net: "tcp", Addr: "bücher.example:3306", DBName: "köln"},
		"mysql://u:p@/shop?socket=/run/my.sock":  {User: "u", Passwd: "p", Net: "unix", Addr: "/run/my.sock", DBName: "shop"},
		"mysql://u@localhost?socket=%40abstract": {User: "u", Net: "unix", Addr: "@abstract"},
	} {
		t.Run(input, func(t *testing.T) {
			cfg, err := dsn.Parse(input)
			require.NoError(t, err)
			assert.Equal(t, want, mysql.Config{
				User: cfg.User, Passwd: cfg.Passwd, Net: cfg.Net, Addr: cfg.Addr, DBName: cfg.DBName,
			})
			assert.Nil(t, cfg.TLS)
			_, err = mysql.NewConnector(cfg)
			assert.NoError(t, err, "the driver must take the configuration")
		})
	}
}

func TestParseParametersAlikeInBothForms(t *testing.T) {
	const params = "?tls=skip-verify&timeout=5s&readTimeout=1m&charset=utf8mb4,utf8&collation=utf8mb4_bin" +
		"&parseTime=true&maxAllowedPacket=0&loc=Europe%2FBerlin&sql_mode=%27ANSI%27&wait_timeout=60&&"
	for _, start := range []string{"u:p@tcp(db:3306)/shop", "mysql://u:p@db/shop"} {
		cfg, err := dsn.Parse(start + params)
		require.NoError(t, err)
		assert.True(t, cfg.TLS.InsecureSkipVerify)
		assert.Equal(t, 5*time.Second, cfg.Timeout)
		assert.Equal(t, time.Minute, cfg.ReadTimeout)
		assert.Equal(t, "utf8mb4_bin", cfg.Collation)
		assert.True(t, cfg.ParseTime)
		assert.Zero(t, cfg.MaxAllowedPacket)
		assert.Equal(t, "Europe/Berlin", cfg.Loc.String())
		assert.Equal(t, map[string]string{"sql_mode": "'ANSI'", "wait_timeout": "60"}, cfg.Params,
			"parameters that the driver does not know are session variables")
		assert.Contains(t, cfg.FormatDSN(), "charset=utf8mb4,utf8")
	}
}

func TestParseSlashInURLParameter(t *testing.T) {
	cfg, err := dsn.Parse("mysql://db/shop?loc=Europe/Berlin&socket=&x=1")
	require.Error(t, err, "an empty socket")
	assert.Nil(t, cfg)

	cfg, err = dsn.Parse("mysql://db/shop?loc=Europe/Berlin")
	require.NoError(t, err)
	assert.Equal(t, "Europe/Berlin", cfg.Loc.String())
	assert.Equal(t, "shop", cfg.DBName)
}

func TestParseTLS(t *testing.T) {
	for _, start := range []string{"tcp(db.example:3306)/", "mysql://db.example/"} {
		cfg, err := dsn.Parse(start + "?tls=true")
		require.NoError(t, err)
		assert.Equal(t, "db.example", cfg.TLS.ServerName)
		assert.False(t, cfg.TLS.InsecureSkipVerify)

		cfg, err = dsn.Parse(start + "?tls=preferred")
		require.NoError(t, err)
		assert.True(t, cfg.TLS.InsecureSkipVerify)
		assert.True(t, cfg.AllowFallbackToPlaintext)

		cfg, err = dsn.Parse(start + "?tls=false")
		require.NoError(t, err)
		assert.Nil(t, cfg.TLS)
	}
	cfg, err := dsn.Parse("mysql://u@/?tls=true&socket=/run/my.sock")
	require.NoError(t, err)
	assert.Equal(t, "localhost", cfg.TLS.ServerName)
}

// Each input has the password s3cret, or its pieces s3 and cret, in a place
// where a parser takes it for something else.
func TestParseErrorsNameThePartAndNoPassword(t *testing.T) {
	for input, want := range map[string]string{
		"":                                       "is empty",
		"/shop\n":                                "line break",
		"u:s3cret":                               "no slash in front of the database",
		"u:s3@cret:word@tcp(host":                "no slash in front of the database",
		"u:s3/cret@tcp(db:1)":                    "an @ behind the last slash",
		"u:s3cret@tcp/cret@tcp(db:1)":            "an @ behind the last slash",
		"u:s3(a)/cret":                           "the address between the password and the database",
		"u:s3cret@db/shop":                       "the address between the password and the database",
		"u:s3cret@db:3306/shop":                  "is neither tcp(host:port)",
		"u:s3cret@tcp(db:3306/shop":              "is neither tcp(host:port)",
		"u:s3cret@tcp(db:3306)x/shop":            "is neither tcp(host:port)",
		"u:s3cret@tcp(db:http)/shop":             "is neither tcp(host:port)",
		"u:s3cret@tcp([::1])/shop":               "brackets around an IPv6 address",
		"u:s3cret@udp(db:1)/shop":                "is neither tcp(host:port)",
		"u:s3cret@tcp(db:1)/%zz":                 "the database is not percent-encoded",
		"u:s3cret@tcp(db:1)/a%00":                "NUL character",
		"postgres://u:s3cret@db/shop":            "begin with mysql:// or mariadb://",
		"postgres://u:s3cret@db":                 "begin with mysql:// or mariadb://",
		"postgres://u:s3/cret@db/x@y":            "begin with mysql:// or mariadb://",
		"mysql://u:s3#cret@db/shop":              "write it as %23",
		"mysql://u:s3/cret@db/shop":              "an @ behind the host",
		"mysql://u:12/s3cret@db/shop":            "an @ behind the host",
		"mysql://u:s3?cret@db/shop":              "an @ behind the host",
		"mysql://u:s3cret":                       "the port is not a number",
		"mysql://u:s3cret%zz@db/shop":            "the password is not percent-encoded",
		"mysql://s3%zz:cret@db/shop":             "the user is not percent-encoded",
		"mysql://u:s3cret%00@db/shop":            "the password has a NUL",
		"mysql://u:s3cret@db/shop%":              "the database is not percent-encoded",
		"mysql://u:s3cret@db/shop/x":             "a second slash behind the host",
		"mysql://u:s3cret@db:0/shop":             "the port is not a number",
		"mysql://u:s3cret@db:65536/shop":         "the port is not a number from 1 to 65535",
		"mysql://u:s3cret@db:/shop":              "the port is not a number",
		"mysql://u:s3cret@::1/shop":              "around an IPv6 address add brackets",
		"mysql://u:s3cret@[::1/shop":             "in brackets is not an IPv6 address",
		"mysql://u:s3cret@[::1]x:1/shop":         "is not followed by the port",
		"mysql://u:s3cret@[db]/shop":             "in brackets is not an IPv6 address",
		"mysql://u:s3cret@tcp(db:1)/shop":        "a URL has no tcp(...)",
		"mysql://u:s3cret@db1,db2/shop":          "takes one host",
		"mysql://u:s3cret@db/?socket=/x":         "both a host and a socket",
		"mysql://u:s3cret@/?socket=%zz":          "the parameter socket is not the path",
		"mysql://u:s3cret@/?socket=a%00":         "the parameter socket is not the path",
		"mysql://db/shop?user=u&password=s3cret": "the parameter user has no place here: write the user in front of the @",
		"u@tcp(db:1)/?Password=s3cret":           "the parameter password has no place here",
		"u@tcp(db:1)/?socket=s3cret":             "write unix(/path/to.sock) as the address",
		"u@tcp(db:1)/?strict=s3cret":             "the driver no longer has it",
		"u@tcp(db:1)/?s3cret":                    "has no name or no value",
		"u@tcp(db:1)/?=s3cret":                   "has no name or no value",
		"u@tcp(db:1)/?tls":                       "the parameter tls has no name or no value",
		"u@tcp(db:1)/?s3=cret%":                  "a session variable, takes a percent-encoded value",
		"u@tcp(db:1)/?timeout=s3cret":            "the parameter timeout takes a duration with its unit",
		"u@tcp(db:1)/?parseTime=s3cret":          "parseTime takes true or false",
		"mysql://db/?maxAllowedPacket=s3cret":    "maxAllowedPacket takes a number of bytes",
		"mysql://db/?tls=s3cret":                 "tls takes true (the system",
		"mysql://db/?loc=s3cret":                 "loc takes a time zone",
		"mysql://db/?serverPubKey=s3cret":        "serverPubKey takes the name of a key",
		"mysql://db/?connectionAttributes=s3%":   "connectionAttributes takes key:value pairs",
		"mysql://db/?charset=utf8mb4,s3cret":     "charset takes utf8mb4 or another that begins with utf8",
		"mysql://db/?collation=gbk_chinese_ci":   "collation takes utf8mb4",
	} {
		t.Run(input, func(t *testing.T) {
			cfg, err := dsn.Parse(input)
			require.Error(t, err)
			assert.Nil(t, cfg)
			var syntax *dsn.SyntaxError
			require.ErrorAs(t, err, &syntax)
			assert.Contains(t, syntax.Problem, want)
			assert.Contains(t, err.Error(), "expected user:password@tcp(host:3306)/database")
			for _, piece := range []string{"s3", "cret"} {
				assert.NotContains(t, err.Error(), piece)
			}
			assert.NoError(t, errors.Unwrap(err), "nothing that holds the input may be wrapped")
		})
	}
}

func TestParseDoesNotPanicOnStrict(t *testing.T) {
	assert.Panics(t, func() { _, _ = mysql.ParseDSN("/?strict=1") },
		"if the driver no longer panics, the parameter needs no special care")
	assert.NotPanics(t, func() { _, _ = dsn.Parse("/?strict=1") })
}

func TestKnownParametersAreTheDrivers(t *testing.T) {
	// A parameter that the driver knows does not become a session
	// variable. If the driver gets a new one, the list of this package must follow.
	for _, pair := range strings.Fields(`allowAllFiles=1 allowCleartextPasswords=1 allowFallbackToPlaintext=1
		allowNativePasswords=1 allowOldPasswords=1 charset=utf8 checkConnLiveness=1 clientFoundRows=1
		collation=utf8_bin columnsWithAlias=1 compress=1 connectionAttributes=a:b interpolateParams=1 loc=UTC
		maxAllowedPacket=1 multiStatements=1 parseTime=1 readTimeout=1s rejectReadOnly=1 timeTruncate=1s
		timeout=1s tls=true writeTimeout=1s`) {
		cfg, err := dsn.Parse("/?" + pair)
		require.NoError(t, err, pair)
		assert.Empty(t, cfg.Params, pair)

		name, _, _ := strings.Cut(pair, "=")
		_, err = dsn.Parse("/?" + name)
		assert.ErrorContains(t, err, "the parameter "+name+" has no", "the message must know its name")
	}
}

func ExampleParse() {
	cfg, err := dsn.Parse("mysql://app:pa%2Fss@db.example/shop?tls=preferred")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(dsn.Format(cfg), cfg.Passwd)
	// Output: app@tcp(db.example:3306)/shop pa/ss
}
