package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The connection comes from the first of these that is set: --dsn or --defaults-file, MQNOTIFY_DSN, ~/.my.cnf. --database
// overrides the database of each.
func TestConnection(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		right, _ := database(t, s, "orders")
		wrong := s.Database(t)
		host, port, _ := strings.Cut(s.Addr(), ":")
		home := t.TempDir()
		option := func(name, database string) string {
			file := filepath.Join(home, name)
			require.NoError(t, os.WriteFile(file, []byte("[client]\nhost="+host+"\nport="+port+"\nuser=root\n"+database), 0o600))
			return file
		}
		option(".my.cnf", "database="+right.DBName)
		rightFile, noDatabase := option("right.cnf", "database="+right.DBName), option("none.cnf", "")
		for name, test := range map[string]struct {
			environ, args []string
		}{
			"my.cnf":           {nil, nil},
			"env":              {[]string{"HOME=/nowhere", envDSN + "=" + right.FormatDSN()}, nil},
			"env as URL":       {[]string{"HOME=/nowhere", envDSN + "=mysql://root@" + s.Addr() + "/" + right.DBName}, nil},
			"flag before env":  {[]string{envDSN + "=" + wrong.FormatDSN()}, []string{"--dsn", right.FormatDSN()}},
			"file before env":  {[]string{envDSN + "=" + wrong.FormatDSN()}, []string{"--defaults-file", rightFile}},
			"database":         {[]string{envDSN + "=" + wrong.FormatDSN()}, []string{"--database", right.DBName}},
			"database of file": {nil, []string{"--defaults-file", noDatabase, "--database", right.DBName}},
		} {
			t.Run(name, func(t *testing.T) {
				environ := append([]string{"HOME=" + home}, test.environ...)
				r := start(t, environ, strings.NewReader(""), append(test.args, "tail", "orders")...).wait(t)
				require.Equal(t, exitDone, r.code, r.err)
			})
		}
		r := start(t, []string{"HOME=" + home}, nil, "tail", "orders", "--defaults-file", noDatabase).wait(t)
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.err, "--database")
	})
}

// If a connection fails, the error is one line with the remedy and without the password.
func TestConnectionFails(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		user := s.User(t, config, "SELECT ON "+config.DBName+".orders")
		denied, nowhere, away := user.Clone(), user.Clone(), user.Clone()
		denied.Passwd = "s3cret-and-wrong"
		nowhere.DBName, nowhere.User, nowhere.Passwd = "nosuch", config.User, config.Passwd
		away.Addr = "127.0.0.1:1"
		for want, dsn := range map[string]string{
			"check user and password":      denied.FormatDSN(),
			"CREATE DATABASE":              nowhere.FormatDSN(),
			"is the server running there?": away.FormatDSN(),
			"is neither tcp(host:port)":    "me:s3cret/and@127.0.0.1/db",
			"no slash in front of the":     "me:s3cret",
			"no database is named":         "me:s3cret@tcp(127.0.0.1:1)/",
			"no server is named":           "",
		} {
			for _, command := range [][]string{{"tail", "orders"}, {"produce", "orders", "x"}, {"consume", "orders"}, {"flag", "orders"}, {"init", "orders"}} {
				environ := []string{"HOME=/nowhere", envDSN + "=" + dsn}
				r := start(t, environ, nil, append(command, "--log-level", "debug")...).wait(t)
				require.Equal(t, exitFailed, r.code, "%s", r.err)
				said := strings.Split(strings.TrimSpace(r.err), "\n")
				require.Contains(t, said[len(said)-1], want)
				require.True(t, strings.HasPrefix(said[len(said)-1], "mqnotify: "), r.err)
				for _, secret := range []string{"s3cret", user.Passwd} {
					require.NotContains(t, r.out+r.err, secret)
				}
			}
		}
		require.Contains(t, fail(t, exitUsage, nil, "tail", "orders", "--dsn", "x", "--defaults-file", "y"), "give one of them")
		require.Contains(t, fail(t, exitFailed, nil, "tail", "orders", "--defaults-file", "/nosuch"), "/nosuch")
		require.Contains(t, fail(t, exitUsage, config, "tail", "orders", "--database", strings.Repeat("x", 65)), "--database")
	})
}

// On a read-only server a producer gets an error that says so, and a reader can read.
func TestReadOnlyServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config, db := database(t, own, "orders")
		succeed(t, config, "produce", "orders", "one")
		user := own.User(t, config, "SELECT, INSERT, CREATE ON "+config.DBName+".*")
		mysqltest.Exec(t, db, "SET GLOBAL read_only = 1")
		require.Contains(t, fail(t, exitFailed, user, "produce", "orders", "x"), "connect to the primary")
		require.Contains(t, fail(t, exitFailed, user, "init", "more"), "connect to the primary")
		require.Equal(t, "one\n", succeed(t, user, "consume", "orders", "--from", "beginning", "--stop-at-end", "--format", "payload"))
		pollsReplica(t, user, db)
		mysqltest.Exec(t, db, "SET GLOBAL read_only = 0")
	})
}

// pollsReplica checks that on a read-only server a consumer polls, says so, and finds the rows of the replication.
func pollsReplica(t *testing.T, config *mysql.Config, db *sqlx.DB) {
	t.Helper()
	require.Contains(t, fail(t, exitFailed, config, "notify", "orders"), "connect to the primary")
	c := background(t, config, "consume", "orders", "--from", "1", "--limit", "2", "--format", "payload")
	c.err.contains(t, "mode=poll why=")
	mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('y')") // root can write
	require.Equal(t, "one\ny\n", c.wait(t).out)
}

// With --wait, a command that starts before its server works as soon as the server answers.
func TestWaitForTheServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t)
		config := s.Database(t)
		succeed(t, config, "init", "orders")
		succeed(t, config, "produce", "orders", "one")
		s.Stop()
		require.Contains(t, fail(t, exitFailed, config, "produce", "orders", "x"), "connect")
		said := fail(t, exitFailed, config, "produce", "orders", "x", "--wait=1s")
		require.Contains(t, said, "no answer within --wait=1s")
		require.Contains(t, said, "waiting for the server")
		require.Contains(t, fail(t, exitUsage, config, "produce", "orders", "x", "--wait=-1s"), "not negative")
		c := background(t, config, "consume", "orders", "--from", "1", "--limit", "1", "--format", "payload", "--wait")
		c.err.contains(t, "waiting for the server")
		s.Restart(t)
		require.Equal(t, "one\n", c.wait(t).out)
		wrong := config.Clone()
		wrong.User = "nobody"
		require.Contains(t, fail(t, exitFailed, wrong, "produce", "orders", "x", "--wait"), "Access denied", "--wait does not wait after a refusal")
	})
}

// A DSN in any output has no password.
func TestRedactor(t *testing.T) {
	var out text
	a := newApp(streams{err: &out, environ: []string{envDSN + "=me:pass word@tcp(h:1)/db"}})
	config, err := a.config()
	require.NoError(t, err)
	a.note("%s and %s and :pass word@h", a.getenv(envDSN), config.FormatDSN())
	require.NotContains(t, out.String(), "pass word")
	require.Contains(t, out.String(), "me:***@tcp(h:1)/db")
}
