package mysqltest

import (
	"errors"

	"github.com/go-sql-driver/mysql"
)

// Servers returns the servers of the matrix, not started, for a program that measures and is not a test.
func Servers() ([]*Server, error) {
	all, err := matrix()
	if err != nil {
		return nil, err
	}
	servers := make([]*Server, len(all))
	for i, e := range all {
		servers[i] = e.server
	}
	return servers, nil
}

// Launch starts an instance of the server and returns how to connect to it as root. The instance lives until [Close]. The flags
// are those of [Server.Start]. Launch fails for the user's own server.
func (s *Server) Launch(flags ...string) (*mysql.Config, error) {
	if s.dsn != nil {
		return nil, errors.New("mysqltest: can't start another instance of the server that " + envDSN + " names; unset it")
	}
	own := &Server{name: s.name, version: s.version, mariadb: s.mariadb, binary: s.binary}
	if err := own.launch(flags...); err != nil {
		return nil, err
	}
	return own.config(), nil
}

// Close ends all instances and removes their data. In tests [Main] does that.
func Close() error { return home.close() }
