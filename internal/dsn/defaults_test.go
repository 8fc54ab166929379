package dsn

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDefaultsFile(t *testing.T) {
	account, err := user.Current()
	require.NoError(t, err)
	login := account.Username

	for name, test := range map[string]struct {
		content string
		want    mysql.Config
	}{
		"empty": {"", mysql.Config{User: login, Net: "tcp", Addr: "127.0.0.1:3306"}},
		"all": {
			"[client]\nhost=db\nport=3307\nuser=app\npassword=\"p#1\"\ndatabase=shop\nsocket=/my.sock\n",
			mysql.Config{User: "app", Passwd: "p#1", Net: "tcp", Addr: "db:3307", DBName: "shop"},
		},
		"later wins, whatever the group": {
			"[mqnotify]\nuser=a\ndatabase=a\n[mysql]\ndatabase=b\n[client]\nuser=b\nuser=c\n",
			mysql.Config{User: "c", Net: "tcp", Addr: "127.0.0.1:3306", DBName: "b"},
		},
		"every group, no other": {
			"[client]\nhost=h\n[client-server]\nport=1\n[client-mariadb]\nuser=u\n[mariadb-client]\npassword=p\n" +
				"[MySQL]\ndatabase=d\n[mysqld]\nport=2\nuser=mysql\nnonsense\n[mysqldump]\nuser=x\n",
			mysql.Config{User: "u", Passwd: "p", Net: "tcp", Addr: "h:1", DBName: "d"},
		},
		"socket without a host": {
			"[client]\nuser=u\nsocket=/my.sock\nport=3307",
			mysql.Config{User: "u", Net: "unix", Addr: "/my.sock"},
		},
		"socket on localhost": {
			"[client]\nuser=u\nhost=localhost\nsocket=/my.sock",
			mysql.Config{User: "u", Net: "unix", Addr: "/my.sock"},
		},
		"localhost without a socket": {
			"[client]\nuser=u\nhost=localhost",
			mysql.Config{User: "u", Net: "tcp", Addr: "localhost:3306"},
		},
		"protocol tcp": {
			"[client]\nuser=u\nsocket=/my.sock\nprotocol=TCP",
			mysql.Config{User: "u", Net: "tcp", Addr: "127.0.0.1:3306"},
		},
		"protocol socket": {
			"[client]\nuser=u\nsocket=/my.sock\nprotocol=socket",
			mysql.Config{User: "u", Net: "unix", Addr: "/my.sock"},
		},
		"IPv6":        {"[client]\nuser=u\nhost=::1", mysql.Config{User: "u", Net: "tcp", Addr: "[::1]:3306"}},
		"port 0":      {"[client]\nuser=u\nport=0", mysql.Config{User: "u", Net: "tcp", Addr: "127.0.0.1:3306"}},
		"loose":       {"[client]\nloose-user=u", mysql.Config{User: "u", Net: "tcp", Addr: "127.0.0.1:3306"}},
		"no password": {"[client]\nuser=u\npassword=p\npassword=", mysql.Config{User: "u", Net: "tcp", Addr: "127.0.0.1:3306"}},
		"others are ignored": {
			"[client]\nuser=u\ndefault-character-set=gbk\nssl-cipher=x\n[mysql]\nprompt=\\u\nno-auto-rehash\n",
			mysql.Config{User: "u", Net: "tcp", Addr: "127.0.0.1:3306"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := FromDefaultsFile(write(t, "my.cnf", test.content))
			require.NoError(t, err)
			assert.Equal(t, test.want, mysql.Config{
				User: cfg.User, Passwd: cfg.Passwd, Net: cfg.Net, Addr: cfg.Addr, DBName: cfg.DBName,
			})
			assert.Empty(t, cfg.Params)
			_, err = mysql.NewConnector(cfg)
			assert.NoError(t, err, "the driver must take the configuration")
		})
	}
}

func TestDefaultsFileErrors(t *testing.T) {
	for content, want := range map[string]string{
		"password":                    "mqnotify does not ask: write password=...",
		"user":                        "user has no value: write user=...",
		"port=s3cret":                 "port is not a number from 1 to 65535",
		"port=":                       "", // as if it were absent
		"port=65536":                  "port is not a number",
		"protocol=s3cret":             "protocol is neither tcp nor socket",
		"protocol=socket":             "protocol=socket needs socket=/path",
		"password s3cret":             "neither name=value nor a name",
		"password: s3cret":            "neither name=value nor a name",
		"=s3cret":                     "neither name=value nor a name",
		"pass=s3cret":                 "the option is cut short: write password in full",
		"ssl-c=s3cret":                "the option is cut short: write ssl-ca in full",
		"ssl=s3cret":                  "ssl is neither 1 nor 0",
		"ssl-verify-server-cert=yes":  "ssl-verify-server-cert is neither 1 nor 0",
		"ssl-mode=s3cret":             "ssl-mode is none of DISABLED",
		"ssl-mode=":                   "ssl-mode is none of DISABLED",
		"ssl-crl=/x":                  "ssl-crl is not supported: put the CAs into one file",
		"ssl-capath=/x":               "ssl-capath is not supported",
		"ssl-ca=/absent/ca.pem":       "ssl-ca: open /absent/ca.pem: ",
		"ssl-cert=/x":                 "ssl-cert needs ssl-key as well",
		"ssl-key=/x":                  "ssl-key needs ssl-cert as well",
		"tls-version=TLSv1.1,TLSv1.2": "tls-version is not a list of TLSv1.2 and TLSv1.3",
	} {
		t.Run(want, func(t *testing.T) { // the name ends up in the path, hence in the error
			path := write(t, "my.cnf", "[client]\n# on the third line\n"+content+"\n")
			_, err := FromDefaultsFile(path)
			if want == "" {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			assert.Contains(t, err.Error(), "dsn: defaults file: "+path+":3: ")
			assert.Contains(t, err.Error(), want)
			assert.NotContains(t, err.Error(), "s3cret")
		})
	}
}

func ExampleFromDefaultsFile() {
	dir, err := os.MkdirTemp("", "mqnotify")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "my.cnf")
	if err := os.WriteFile(path, []byte("[client]\nhost = db.example\nuser = app\n"), 0o600); err != nil {
		panic(err)
	}
	cfg, err := FromDefaultsFile(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(Format(cfg))
	// Output: app@tcp(db.example:3306)/
}
