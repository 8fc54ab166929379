package mysqltest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/child"
)

// open returns a pool for cfg that is closed at the test's end.
func open(t *testing.T, cfg *mysql.Config) *sql.DB {
	t.Helper()
	db, err := openPool(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { closePool(db) })
	return db
}

func number(t *testing.T, db *sql.DB, query string) int {
	t.Helper()
	return Value[int](t, db, query) // repeated while MySQL lists no sessions
}

// answers reports whether the server answers within a moment.
func answers(t *testing.T, db *sql.DB) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := db.ExecContext(ctx, "SELECT 1")
	return err == nil
}

func TestServerMatchesItsName(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		var version string
		require.NoError(t, s.Admin(t).QueryRowContext(t.Context(), "SELECT VERSION()").Scan(&version))
		require.Equal(t, s.IsMariaDB(), strings.Contains(version, "MariaDB"))
		if s.dsn == nil {
			_, series, _ := strings.Cut(s.Name(), "-")
			require.True(t, strings.HasPrefix(version, series), "%s is version %s", s.Name(), version)
		}
	})
}

// Committed rows survive a shutdown and kill -9, and the server is at the same address after a restart.
func TestDataOutlivesTheServer(t *testing.T) {
	NotShort(t, "consumer.TestWithAnOwnServer")
	Each(t, func(t *testing.T, shared *Server) {
		s := shared.Start(t)
		addr := s.Addr()
		db := open(t, s.Database(t))
		_, err := db.ExecContext(t.Context(), "CREATE TABLE t (id INT PRIMARY KEY) ENGINE=InnoDB")
		require.NoError(t, err)

		for i, end := range []func(){s.Kill, s.Stop, func() {}} {
			_, err := db.ExecContext(t.Context(), "INSERT INTO t VALUES (?)", i)
			require.NoError(t, err)
			end()
			s.Restart(t)
			require.Equal(t, addr, s.Addr())
			require.Eventually(t, func() bool { return answers(t, db) }, patience, tick)
			require.Equal(t, i+1, number(t, db, "SELECT COUNT(*) FROM t"))
		}
		s.Kill()
		require.False(t, answers(t, db))
		require.True(t, child.PortIsFree(s.port))
	})
}

func TestFreeze(t *testing.T) {
	Each(t, func(t *testing.T, shared *Server) {
		s := shared.Start(t)
		db := open(t, s.Database(t))
		require.Eventually(t, func() bool { return answers(t, db) }, patience, tick)
		s.Freeze()
		require.False(t, answers(t, db))
		s.Thaw()
		require.Eventually(t, func() bool { return answers(t, db) }, patience, tick)
		s.Freeze()
		s.Stop() // must not hang
		require.False(t, answers(t, db))
	})
}

func TestFlagsWin(t *testing.T) {
	Each(t, func(t *testing.T, shared *Server) {
		flags := []string{"--max-connections=17", "--log-bin=binlog", "--server-id=3"}
		if !shared.IsMariaDB() {
			flags = append(flags, "--gtid-mode=ON", "--enforce-gtid-consistency=ON")
		}
		s := shared.Start(t, flags...)
		db := s.Admin(t)
		require.Equal(t, 17, number(t, db, "SELECT @@max_connections"))
		require.Equal(t, 1, number(t, db, "SELECT @@log_bin"))
		if !shared.IsMariaDB() {
			require.Equal(t, 1, number(t, db, "SELECT @@gtid_mode = 'ON'"))
		}
	})
}

// The error of a server that does not start says why, and no folder is left.
func TestServerThatDoesNotStart(t *testing.T) {
	for _, e := range entries(t) {
		t.Run(e.server.name, func(t *testing.T) {
			if e.server.dsn != nil {
				t.Skip("needs a server's binary")
			}
			s := &Server{name: e.server.name, version: e.server.version, mariadb: e.server.mariadb, binary: e.server.binary}
			err := s.launch("--no-such-flag")
			require.ErrorContains(t, err, "no-such-flag")
			require.NoDirExists(t, s.dir)
		})
	}
}

func TestSharedServerMayNotBeStopped(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		if s.dsn != nil {
			require.PanicsWithValue(t, "mysqltest: dsn is shared by the package's tests: get one of the test's own with Start", s.Stop)
			return
		}
		for _, end := range []func(){s.Stop, s.Kill, s.Freeze, s.Thaw, func() { s.Restart(t) }} {
			require.Panics(t, end)
		}
		require.Equal(t, 1, number(t, s.Admin(t), "SELECT 1"))
	})
}

func TestQuestions(t *testing.T) {
	Each(t, func(t *testing.T, shared *Server) {
		s := shared.Start(t)
		db := s.Admin(t)
		require.NoError(t, db.PingContext(t.Context()))
		before := s.Questions(t)
		for range 5 {
			_, err := db.ExecContext(t.Context(), "DO 1")
			require.NoError(t, err)
		}
		require.Equal(t, before+5+1, s.Questions(t))
	})
}

func TestFindServers(t *testing.T) {
	dir := t.TempDir()
	fake := func(name, output string) string {
		path := filepath.Join(dir, name)
		script := fmt.Sprintf("#!/bin/sh\necho '%s'\n", output)
		require.NoError(t, os.WriteFile(path, []byte(script), 0o700))
		return path
	}
	mysqld := fake("mysqld", "/usr/sbin/mysqld  Ver 8.4.3 for Linux on x86_64 (MySQL Community Server)")
	mariadbd := fake("mariadbd", "mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)")

	servers, err := findServers("", "new="+mysqld+" old="+mariadbd)
	require.NoError(t, err)
	require.Len(t, servers, 2)
	require.Equal(t, "new", servers[0].Name())
	require.False(t, servers[0].IsMariaDB())
	require.Equal(t, "old", servers[1].Name())
	require.True(t, servers[1].IsMariaDB())

	s, err := serverFrom(mysqld)
	require.NoError(t, err)
	require.Equal(t, "mysql-8.4", s.Name())
	s, err = serverFrom(mariadbd)
	require.NoError(t, err)
	require.Equal(t, "mariadb-10.11", s.Name())

	for _, list := range []string{"mysqld", "=x", "x=", "x=" + filepath.Join(dir, "missing"), "x=" + fake("cat", "meow"), " "} {
		_, err := findServers("", list)
		require.Error(t, err, list)
	}
	_, err = findServers("root:secret@tcp(127.0.0.1", "")
	require.ErrorContains(t, err, envDSN)
	require.NotContains(t, err.Error(), "secret")
}

// sweep removes a folder whose test process is gone. It keeps one in use, and a new one.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	folder := func(name string, age time.Duration) string {
		path := filepath.Join(dir, "mqnotify-test-"+name)
		require.NoError(t, os.Mkdir(path, 0o700))
		lock := filepath.Join(path, "lock")
		require.NoError(t, os.WriteFile(lock, nil, 0o600))
		then := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(lock, then, then))
		return path
	}
	dead, used, young := folder("dead", time.Hour), folder("used", time.Hour), folder("young", 0)
	unlock, err := lockFile(filepath.Join(used, "lock"), true)
	require.NoError(t, err)
	defer unlock()

	sweep(dir)
	require.NoDirExists(t, dead)
	require.DirExists(t, used)
	require.DirExists(t, young)
}
