package mysqltest

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	// patience bounds each step of the harness, such as a stop or a cleanup. It is far above what any step takes, so that only
	// a real fault exceeds it.
	patience = time.Minute
	// startPatience bounds a server's start. It is longer because several servers start at the same time, perhaps on a slow
	// machine.
	startPatience = 3 * time.Minute
)

// Server is one database server: the shared instance of a server of the matrix, or a test's own instance ([Server.Start]). Its
// methods are safe for concurrent use. A method with a testing.TB fails that test if it can't do its work.
type Server struct {
	name    string
	version string
	mariadb bool
	binary  string
	dsn     *mysql.Config // the user's own server, which tests must not start or stop

	tb    testing.TB // the test that owns this instance; nil when it is shared
	flags []string
	from  string // the data folder that is copied; "" for the template
	path  string // a folder of scripts that the server runs, or ""
	dir   string
	port  int
	admin *sql.DB // for the harness's own work

	mu      sync.Mutex
	process *process // nil when stopped
	frozen  bool
}

// Name returns the server's name in the matrix, such as "mariadb-11.8".
func (s *Server) Name() string { return s.name }

// IsMariaDB reports whether the server is MariaDB. If not, it is MySQL.
func (s *Server) IsMariaDB() bool { return s.mariadb }

// Addr returns the server's host and port.
func (s *Server) Addr() string { return s.config().Addr }

// Start starts an instance of the same server for this test alone, which may stop, kill and freeze it. The flags are the
// server's own ("--gtid-mode=ON") and override those of the harness. On MySQL the binary log is off unless a flag begins with
// "--log-bin". The instance ends with the test. Start skips a test on the user's own server.
func (s *Server) Start(tb testing.TB, flags ...string) *Server {
	tb.Helper()
	if s.dsn != nil {
		tb.Skipf("needs an instance that it may stop and start, but %s names your own server", envDSN)
	}
	own := &Server{name: s.name, version: s.version, mariadb: s.mariadb, binary: s.binary, tb: tb}
	if err := own.launch(flags...); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := own.close(); err != nil {
			tb.Error(err)
		}
	})
	own.logWhenFailed(tb)
	return own
}

// Stop shuts the server down in an orderly way and returns when its process has ended.
func (s *Server) Stop() { s.end(signalTerminate) }

// Kill ends the server with SIGKILL and returns when its process has ended. Committed rows survive.
func (s *Server) Kill() { s.end(os.Kill) }

// Restart starts the server again, on the same data and port, and returns when it answers. A server that
// still runs is shut down first.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.run(); err != nil {
		tb.Fatal(err)
	}
}

// Freeze stops the server's process where it is (SIGSTOP): its connections stay open, and it answers nothing. Freeze returns
// when the process has stopped. It does nothing if the server is frozen already or does not run.
func (s *Server) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mayBeStopped() && s.process != nil && !s.frozen {
		s.report(s.process.signal(signalFreeze))
		s.process.AwaitStopped()
		s.frozen = true
	}
}

// Thaw ends [Server.Freeze].
func (s *Server) Thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mayBeStopped() && s.process != nil && s.frozen {
		s.report(s.process.signal(signalThaw))
		s.frozen = false
	}
}

// Admin returns a pool that connects as root without a default database. It is closed at the test's end.
func (s *Server) Admin(tb testing.TB) *sql.DB {
	tb.Helper()
	db, err := openPool(s.config())
	if err != nil {
		tb.Fatalf("mysqltest: %v", err)
	}
	tb.Cleanup(func() { closePool(db) })
	return db
}

// Questions returns how many statements clients have sent since the server started. Its own query counts as one. The statements
// of other tests count as well, so the server should be the test's own instance.
func (s *Server) Questions(tb testing.TB) uint64 {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var name string
	var count uint64
	db := s.pool(tb)
	if err := db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &count); err != nil {
		tb.Fatalf("mysqltest: read Questions: %v", err)
	}
	return count
}

// config returns how to connect as root.
func (s *Server) config() *mysql.Config {
	if s.dsn != nil {
		return s.dsn.Clone()
	}
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr = "root", "tcp", loopback(s.port)
	cfg.Logger = &mysql.NopLogger{} // the driver would print a line for every connection that a test cuts
	return cfg
}

// pool returns a pool for the harness's own work. On the user's server it is a new one, which is closed at the test's end.
func (s *Server) pool(tb testing.TB) *sql.DB {
	tb.Helper()
	if s.dsn != nil {
		return s.Admin(tb)
	}
	return s.admin
}

// mayBeStopped returns true if the instance is a test's own. It panics for a shared one, because to stop that would fail other
// tests.
func (s *Server) mayBeStopped() bool {
	if s.tb == nil {
		panic("mysqltest: " + s.name + " is shared by the package's tests: get one of the test's own with Start")
	}
	return true
}

func (s *Server) end(signal os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mayBeStopped() && s.process != nil {
		if s.frozen && signal != os.Kill {
			s.report(s.process.signal(signalThaw))
		}
		s.report(s.process.end(signal))
		s.process, s.frozen = nil, false
	}
}

// report fails the instance's test. Unlike Fatal, Error may be called on any goroutine.
func (s *Server) report(err error) {
	if err != nil {
		s.tb.Error(err)
	}
}

// close ends the instance for good and removes its data.
func (s *Server) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.process != nil {
		// The data is removed as well, so an orderly shutdown is not needed.
		err = s.process.end(os.Kill)
		s.process = nil
	}
	if s.admin != nil {
		closePool(s.admin)
	}
	home.remove(s)
	if removal := os.RemoveAll(s.dir); err == nil {
		err = removal
	}
	return err
}

func (s *Server) dataFolder() string { return filepath.Join(s.dir, "data") }
func (s *Server) logFile() string    { return filepath.Join(s.dir, "log") }
func (s *Server) pidFile() string    { return filepath.Join(s.dir, "pid") }
