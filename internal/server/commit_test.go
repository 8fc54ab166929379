package server_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
)

// A COMMIT that gets no answer ends soon after the context of its transaction. One that is answered in time after the end of the
// context succeeds.
func TestCommitEndsWithItsContext(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t)
		connector, err := server.NewConnector(s.Database(t))
		require.NoError(t, err)
		db := sql.OpenDB(connector)
		defer db.Close()
		mysqltest.Exec(t, db, "CREATE TABLE orders (id INT PRIMARY KEY)")
		for id, answers := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			tx, err := db.BeginTx(ctx, nil)
			require.NoError(t, err)
			_, err = tx.ExecContext(ctx, "INSERT INTO orders VALUES (?)", id)
			require.NoError(t, err)
			s.Freeze()
			ended := make(chan error, 1)
			go func() {
				time.AfterFunc(200*time.Millisecond, cancel) // later than the COMMIT
				ended <- tx.Commit()
			}()
			if answers {
				mysqltest.Await(t, ctx.Done(), "the end of the context")
				s.Thaw()
				require.NoError(t, mysqltest.Receive(t, ended))
				continue
			}
			require.ErrorIs(t, mysqltest.Receive(t, ended), context.Canceled)
			s.Thaw()
		}
	})
}

// openForgetful returns a pool whose connections are dropped silently when the proxy is frozen.
func openForgetful(t *testing.T, s *mysqltest.Server) (*sql.DB, *mysqltest.Proxy) {
	t.Helper()
	config, proxy := s.Database(t), s.Proxy(t) // the proxy ends first, and with it the connections that it holds
	connector, err := server.NewConnector(proxy.Forgetful(config))
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	return db, proxy
}

// A ROLLBACK that gets no answer ends, even if the context of its transaction does not.
func TestRollbackEnds(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, proxy := openForgetful(t, s)
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		proxy.Freeze()
		err = mysqltest.Receive(t, mysqltest.Result(tx.Rollback))
		require.True(t, server.ConnectionLost(err), err)
		require.NoError(t, db.PingContext(t.Context()), "the pool has dropped the connection")
	})
}

// The pool replaces an idle connection that was dropped silently.
func TestIdleConnectionIsReplaced(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, proxy := openForgetful(t, s)
		require.NoError(t, db.PingContext(t.Context()))
		proxy.Freeze()
		mysqltest.Window(t, 6*time.Second) // after 5 s the pool no longer trusts it
		ended := mysqltest.Result(func() error {
			_, err := db.ExecContext(t.Context(), "DO 1")
			return err
		})
		require.NoError(t, mysqltest.Receive(t, ended))
	})
}
