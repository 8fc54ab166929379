package engine

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	enginesql "github.com/dolthub/go-mysql-server/sql"
	"github.com/go-sql-driver/mysql"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
)

// start returns an engine that is closed at the end of the test.
func start(t *testing.T) *Engine {
	e, err := Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// open returns a pool with the options of mqnotify's pinned sessions. It is closed at the end of the test.
func open(t *testing.T, e *Engine, set ...func(*mysql.Config)) *sql.DB {
	config := e.Config()
	config.InterpolateParams = true
	config.Logger = &mysql.NopLogger{} // the driver would log every connection that a test cuts
	for _, f := range set {
		f(config)
	}
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// session returns one connection of the pool and closes it at the end of the test.
func session(t *testing.T, db *sql.DB) *sql.Conn {
	c, err := db.Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { discard(c) })
	return c
}

// discard closes the connection instead of returning it to the pool.
func discard(c *sql.Conn) {
	_ = c.Raw(func(any) error { return driver.ErrBadConn })
}

// number returns the number of a server's error, or 0 for any other error.
func number(err error) int {
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) {
		return int(e.Number)
	}
	return 0
}

func TestEnginesAreSeparate(t *testing.T) {
	first, second := open(t, start(t)), open(t, start(t))
	_, err := first.ExecContext(t.Context(), "CREATE TABLE mine (id INT PRIMARY KEY)")
	require.NoError(t, err)
	_, err = second.ExecContext(t.Context(), "SELECT * FROM mine")
	require.Equal(t, 1146, number(err), "%v", err)
}

func TestStartHeedsItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Start(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// The engine requires a password, because it reads and writes files for every client.
func TestPasswordIsNeeded(t *testing.T) {
	e := start(t)
	for name, set := range map[string]func(*mysql.Config){
		"none":  func(c *mysql.Config) { c.Passwd = "" },
		"wrong": func(c *mysql.Config) { c.Passwd += "x" },
		"root":  func(c *mysql.Config) { c.User, c.Passwd = "root", "" },
	} {
		err := open(t, e, set).PingContext(t.Context())
		require.NotZero(t, number(err), "%s: %v", name, err) // the server refuses it
	}
}

func TestConfigIsACopy(t *testing.T) {
	e := start(t)
	e.Config().Passwd = "changed"
	require.NoError(t, open(t, e).PingContext(t.Context()))
}

// The engine's log does not appear among the messages, whatever goes wrong.
func TestLogIsSilent(t *testing.T) {
	var log bytes.Buffer
	logrus.SetOutput(&log)
	db := open(t, start(t))
	_, err := db.ExecContext(t.Context(), "SELECT * FROM nowhere")
	require.Error(t, err)
	require.Empty(t, log.String())
}

func TestCloseEndsWaits(t *testing.T) {
	e, err := Start(t.Context())
	require.NoError(t, err)
	holder := session(t, open(t, e))
	_, err = holder.ExecContext(t.Context(), "SELECT GET_LOCK('busy', 0)")
	require.NoError(t, err)
	_, err = holder.ExecContext(t.Context(), "CREATE TABLE kept (id INT PRIMARY KEY)")
	require.NoError(t, err)
	_, err = holder.ExecContext(t.Context(), "BEGIN")
	require.NoError(t, err)
	_, err = holder.ExecContext(t.Context(), "INSERT INTO kept VALUES (1)")
	require.NoError(t, err)

	waits := []string{"SELECT GET_LOCK('busy', 600)", "SELECT SLEEP(600)", "SELECT * FROM kept"}
	ended := make(chan error, len(waits))
	db := open(t, e)
	for _, wait := range waits {
		c := session(t, db)
		go func() {
			_, err := c.ExecContext(t.Context(), wait)
			ended <- err
		}()
	}
	// The process list does not show the session that waits for the table.
	require.Eventually(t, func() bool {
		running := 0
		for _, p := range e.engine.ProcessList.Processes() {
			if p.Command == enginesql.ProcessCommandQuery {
				running++
			}
		}
		return running == len(waits)-1
	}, 30*time.Second, time.Millisecond)

	begun := time.Now()
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	require.Less(t, time.Since(begun), 30*time.Second)
	for range waits {
		require.Error(t, <-ended)
	}
	require.Error(t, db.PingContext(t.Context()))
}
