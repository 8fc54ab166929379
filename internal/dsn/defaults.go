package dsn

import (
	"fmt"
	"maps"
	"os/user"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// groups are the groups that mysql(1) of MySQL or of MariaDB reads, so that mqnotify
// connects to the same server as mysql with the same file, and the group mqnotify, which
// can have a database= without an effect on other programs.
var groups = []string{"client", "client-server", "client-mariadb", "mysql", "mariadb-client", "mqnotify"}

// FromDefaultsFile reads the configuration of a connection from an option file (my.cnf), as
// mysql --defaults-file does.
//
// It reads the groups [client], [client-server], [client-mariadb], [mysql],
// [mariadb-client] and [mqnotify]; the later option wins, whatever its group.
// It reads the options
//
//	host, port        default 127.0.0.1 and 3306
//	socket            used if host is absent or localhost
//	protocol          tcp: use no socket; socket: use nothing else
//	user              default: the account that runs the program
//	password, database
//	ssl-mode          DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY
//	ssl, ssl-verify-server-cert     MariaDB's, which count if ssl-mode is absent
//	ssl-ca, ssl-cert, ssl-key       PEM files
//	tls-version       such as TLSv1.2,TLSv1.3
//
// Without ssl-mode, ssl-ca means VERIFY_CA. Without any of these the connection
// is PREFERRED: encrypted if the server supports it, but not verified; plain on a socket.
// Without socket= no socket is used, because mysql's own default differs between
// systems.
//
// Underscores and dashes are the same, and loose- in front of a name changes
// nothing. Other options are ignored, character sets and ciphers among them. But
// an option that would make the connection safer (ssl-crl), or that is an abbreviation of
// one above (pass), is an error, so that it isn't ignored unnoticed.
//
// An error names file and line, and shows no value except the path of a file. It is
// an fs.ErrNotExist if path does not exist, and only then.
//
// The TLS settings are in the configuration itself and not registered with
// the driver: open it with mysql.NewConnector, because FormatDSN loses them.
func FromDefaultsFile(path string) (*mysql.Config, error) {
	cfg, err := fromDefaultsFile(path)
	if err != nil {
		return nil, fmt.Errorf("dsn: defaults file: %w", err)
	}
	return cfg, nil
}

func fromDefaultsFile(path string) (*mysql.Config, error) {
	file := optionFile{groups: groups}
	if err := file.read(path, 0); err != nil {
		return nil, err
	}
	s := settings{}
	for _, o := range file.options {
		if err := s.set(o); err != nil {
			return nil, err
		}
	}
	return s.config()
}

// settings are the options that count; of each option the last one.
type settings struct {
	host, port, socket, protocol option
	user, password, database     option
	tls                          tlsSettings
}

// texts returns the options whose value is a text.
func (s *settings) texts() map[string]*option {
	return map[string]*option{
		"host": &s.host, "port": &s.port, "socket": &s.socket, "protocol": &s.protocol,
		"user": &s.user, "password": &s.password, "database": &s.database,
		"ssl-mode": &s.tls.mode, "tls-version": &s.tls.version,
		"ssl-ca": &s.tls.ca, "ssl-cert": &s.tls.cert, "ssl-key": &s.tls.key,
	}
}

func (s *settings) set(o option) error {
	if o.name == "" || strings.ContainsFunc(o.name, notInName) {
		return o.errorf("the line is neither name=value nor a name")
	}
	texts := s.texts()
	if text, found := texts[o.name]; found {
		if !o.hasValue && o.name == "password" {
			return o.errorf("password without a value makes mysql ask for it; mqnotify does not ask: write password=...")
		}
		if !o.hasValue {
			return o.errorf("%s has no value: write %s=...", o.name, o.name)
		}
		*text = o
		return nil
	}
	if handled, err := s.tls.set(o); handled {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if strings.HasPrefix(name, o.name) {
			return o.errorf("the option is cut short: write %s in full", name)
		}
	}
	return nil
}

// notInName reports whether no name of an option has the character. It finds lines such as "password: x" and "password x", which
// would otherwise be ignored as an option of another program.
func notInName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.'
}

// config returns the driver's configuration.
func (s *settings) config() (*mysql.Config, error) {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName = s.user.value, s.password.value, s.database.value
	if cfg.User == "" {
		if account, err := user.Current(); err == nil {
			cfg.User = account.Username
		}
	}

	port := s.port.value
	if port == "0" { // mysql(1) treats 0 as absent
		port = ""
	}
	if port != "" && !validPort(port) {
		return nil, s.port.errorf("port is not a number from 1 to 65535")
	}
	socket := ""
	if isLocal(s.host.value) {
		socket = s.socket.value
	}
	switch strings.ToLower(s.protocol.value) {
	case "":
	case "tcp":
		socket = ""
	case "socket":
		if socket == "" {
			return nil, s.protocol.errorf("protocol=socket needs socket=/path, and no host or localhost")
		}
	default:
		return nil, s.protocol.errorf("protocol is neither tcp nor socket")
	}

	if err := s.tls.apply(cfg, socket != ""); err != nil {
		return nil, err
	}
	setAddress(cfg, s.host.value, port, socket)
	return cfg, nil
}
