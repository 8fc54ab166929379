package mysqltest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// settleTime is how long a test's sessions may take to end after the test. A server needs about 0.6 s to notice that the client
// of a waiting session is gone, and more on a busy machine.
const settleTime = 15 * time.Second

// Database makes a new, empty database and returns how to connect to it as root. The test fails at its end if a session still uses
// the database or an advisory lock of the test is left. On the user's own server the database is then dropped. The test must close its
// connections with Cleanup or defer, because these run before this check.
func (s *Server) Database(tb testing.TB) *mysql.Config {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	name := "mq_" + randomName()
	db := s.pool(tb)
	if _, err := db.ExecContext(ctx, "CREATE DATABASE "+name); err != nil {
		tb.Fatalf("mysqltest: make a database: %v", err)
	}
	tb.Cleanup(func() {
		if !s.awake() {
			return // stopped by the test, so its sessions are gone, and its data goes with the instance
		}
		err := checkUnused(db, name, settleTime)
		if s.dsn != nil { // otherwise it goes with the instance: to drop it would take MySQL 40 ms of a processor
			err = errors.Join(err, drop(db, name, settleTime))
		}
		if err != nil {
			tb.Error(err)
		}
	})
	cfg := s.config()
	cfg.DBName = name
	return cfg
}

// Unused waits until nothing uses the database, for at most wait. It makes the same check as the test's end. Its error names
// what still uses the database. A database on a server that the test has stopped counts as unused. Unused thaws a frozen
// server.
func (s *Server) Unused(tb testing.TB, cfg *mysql.Config, wait time.Duration) error {
	tb.Helper()
	if !s.awake() {
		return nil
	}
	return checkUnused(s.pool(tb), cfg.DBName, wait)
}

// User makes an account that has only these rights, and returns a copy of cfg with this account. A grant is the text of a GRANT
// statement between GRANT and TO, such as "SELECT, INSERT ON mydb.*". The account is dropped at the test's end.
func (s *Server) User(tb testing.TB, cfg *mysql.Config, grants ...string) *mysql.Config {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	limited := cfg.Clone()
	limited.User, limited.Passwd = "mq_"+randomName(), randomName()
	account := "'" + limited.User + "'@'%'"
	statements := []string{"CREATE USER " + account + " IDENTIFIED BY '" + limited.Passwd + "'"}
	for _, grant := range grants {
		statements = append(statements, "GRANT "+grant+" TO "+account)
	}
	db := s.pool(tb)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if !s.awake() {
			return
		}
		if _, err := db.ExecContext(ctx, "DROP USER IF EXISTS "+account); err != nil {
			tb.Errorf("mysqltest: drop the account: %v", err)
		}
	})
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			tb.Fatalf("mysqltest: make an account: %s: %v", strings.ReplaceAll(statement, limited.Passwd, "..."), err)
		}
	}
	return limited
}

// awake reports whether the server runs. It thaws a frozen server.
func (s *Server) awake() bool {
	if s.dsn != nil || s.tb == nil {
		return true
	}
	s.Thaw()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process != nil
}

// checkUnused waits until no session uses the database and no advisory lock with its name is left. After the time wait its
// error names what is left.
func checkUnused(db *sql.DB, database string, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	late := time.NewTimer(wait)
	defer late.Stop()
	for begun := time.Now(); ; {
		left, err := leftovers(ctx, db, database)
		if err != nil {
			return fmt.Errorf("mysqltest: look for what the test left: %w", err)
		}
		if len(left) == 0 {
			return nil
		}
		select {
		case <-late.C:
			return fmt.Errorf("mysqltest: %v after its end the test still has:\n  %s", wait, strings.Join(left, "\n  "))
		case <-time.After(interval(time.Since(begun))):
		}
	}
}

// drop removes the database. It waits for locks for at most wait, in whole seconds, because a transaction that the test left
// open would otherwise block it for up to a year.
func drop(db *sql.DB, name string, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("mysqltest: drop the test's database: %w", err)
	}
	defer func() { _ = conn.Close() }()
	for _, statement := range []string{
		fmt.Sprintf("SET SESSION lock_wait_timeout = %d", int(wait.Seconds())),
		"DROP DATABASE IF EXISTS " + name,
	} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("mysqltest: drop the test's database (was a transaction left open, or a prepared XA one?): %w", err)
		}
	}
	return nil
}

// randomName returns a name in lower case, because servers treat upper case differently.
func randomName() string { return strings.ToLower(rand.Text()[:12]) }
