package mysqltest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Environment variables that choose the servers.
const (
	envDSN     = "MQNOTIFY_TEST_DSN"
	envServers = "MQNOTIFY_TEST_SERVERS"
)

const howToGetServers = "run scripts/servers, which gets them, or name your own in " + envServers +
	` ("name=path/to/mysqld ...") or ` + envDSN

// Each runs f once for every server of the matrix, as a subtest with the server's name ("mysql-9.7"). The subtests run at the
// same time, and in parallel with the package's other tests. Each server is started at its first use in the package. Without
// any server the test fails.
//
// The subtests run after the function that calls Each has returned, as parallel subtests do. Each must therefore be the last
// call of a test. A failed subtest logs the end of the server's log.
func Each(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	t.Parallel()
	each(t, func(t *testing.T, s *Server) {
		t.Parallel()
		f(t, s)
	})
}

// EachInTurn is [Each] for tests that measure, or that change something of the whole process, such as its standard output or
// environment. It runs one server after another, and not in parallel with the package's other tests.
func EachInTurn(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	each(t, f)
}

// EachCase is [Each] for tests that have several cases: it runs [Some] cases on every server.
func EachCase[T any](t *testing.T, cases []T, f func(t *testing.T, s *Server, c T)) {
	t.Helper()
	t.Parallel()
	for _, c := range Some(t, cases) {
		each(t, func(t *testing.T, s *Server) {
			t.Parallel()
			f(t, s, c)
		})
	}
}

func each(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	for _, e := range entries(t) {
		run(t, e, f)
	}
}

func run(t *testing.T, e *entry, f func(t *testing.T, s *Server)) {
	t.Helper()
	t.Run(e.server.name, func(t *testing.T) {
		s := e.start(t)
		s.logWhenFailed(t)
		f(t, s)
	})
}

// EachB is [Each] for benchmarks: one server after another.
func EachB(b *testing.B, f func(b *testing.B, s *Server)) {
	b.Helper()
	for _, e := range entries(b) {
		b.Run(e.server.name, func(b *testing.B) {
			f(b, e.start(b))
		})
	}
}

// entry is a server of the matrix, and its shared instance once a test has asked for it.
type entry struct {
	server *Server
	once   sync.Once
	err    error
}

func (e *entry) start(tb testing.TB) *Server {
	tb.Helper()
	e.once.Do(func() {
		if e.server.dsn == nil {
			// No test kills the shared instance, so it needs no protection from torn pages.
			e.err = e.server.launch("--innodb-doublewrite=OFF")
		}
	})
	if e.err != nil {
		tb.Fatal(e.err)
	}
	return e.server
}

var matrix = sync.OnceValues(func() ([]*entry, error) {
	servers, err := findServers(os.Getenv(envDSN), os.Getenv(envServers))
	var all []*entry
	for _, s := range servers {
		all = append(all, &entry{server: s})
	}
	return all, err
})

func entries(tb testing.TB) []*entry {
	tb.Helper()
	all, err := matrix()
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

// findServers returns the matrix; dsn and list are the values of the two environment variables.
func findServers(dsn, list string) ([]*Server, error) {
	var servers []*Server
	switch {
	case dsn != "":
		s, err := serverAt(dsn)
		if err != nil {
			return nil, err
		}
		return []*Server{s}, nil
	case list != "":
		for _, word := range strings.Fields(list) {
			name, binary, ok := strings.Cut(word, "=")
			if !ok || name == "" || binary == "" {
				return nil, fmt.Errorf("mysqltest: %s: %q is not name=binary", envServers, word)
			}
			s, err := serverFrom(binary)
			if err != nil {
				return nil, fmt.Errorf("mysqltest: server %s: %w: %s", name, err, howToGetServers)
			}
			s.name = name
			servers = append(servers, s)
		}
	default:
		names := map[string]bool{}
		for _, binary := range usualPlaces() {
			s, err := serverFrom(binary)
			if err != nil || names[s.name] {
				continue
			}
			names[s.name] = true
			servers = append(servers, s)
		}
	}
	if len(servers) == 0 {
		return nil, fmt.Errorf("mysqltest: no database server found: %s", howToGetServers)
	}
	return servers, nil
}

// usualPlaces lists where a server's binary may be. Of two servers with one name, findServers uses the first.
func usualPlaces() []string {
	paths := []string{"/usr/sbin/mariadbd", "/usr/sbin/mysqld"}
	if cache, err := cacheFolder(); err == nil {
		for _, daemon := range []string{"mysqld", "mariadbd"} {
			found, _ := filepath.Glob(filepath.Join(cache, "servers", "*", daemon)) // fails for a bad pattern only
			paths = append(paths, found...)
		}
	}
	return paths
}

var versionPattern = regexp.MustCompile(`Ver ((\d+\.\d+)\.\d+\S*)`)

// serverFrom asks a binary for its kind and version.
func serverFrom(binary string) (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("run %s --version: %w", binary, err)
	}
	version := versionPattern.FindStringSubmatch(string(out))
	if version == nil {
		return nil, fmt.Errorf("%s --version printed no version: %q", binary, out)
	}
	s := &Server{binary: binary, version: version[1], mariadb: strings.Contains(version[1], "MariaDB")}
	if s.mariadb {
		s.name = "mariadb-" + version[2]
	} else {
		s.name = "mysql-" + version[2]
	}
	return s, nil
}

// serverAt returns the user's own server, which the DSN names.
func serverAt(dsn string) (*Server, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		// The driver's error can quote the DSN with its password.
		return nil, fmt.Errorf("mysqltest: %s is no DSN of the form user:password@tcp(host:port)/", envDSN)
	}
	cfg.DBName = ""
	db, err := openPool(cfg)
	if err != nil {
		return nil, fmt.Errorf("mysqltest: %s: %w", envDSN, err)
	}
	defer closePool(db)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s := &Server{name: "dsn", dsn: cfg}
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&s.version); err != nil {
		return nil, fmt.Errorf("mysqltest: %s: connect to %s: %w", envDSN, cfg.Addr, err)
	}
	s.mariadb = strings.Contains(s.version, "MariaDB")
	return s, nil
}

func openPool(cfg *mysql.Config) (*sql.DB, error) {
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// closePool closes a pool after its last use, when an error no longer matters.
func closePool(db *sql.DB) { _ = db.Close() }
