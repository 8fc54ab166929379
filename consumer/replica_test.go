package consumer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// A replica that takes writes, as it does by default, sees no open transaction of its source. A row that commits late
// there is not lost here. (An account that can't see that the server is a replica detects it by the applied transactions.)
func TestWritableReplica(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		source, replica := s.Replica(t)
		config := source.Database(t)
		db := openConfig(t, config, "orders")
		there := config.Clone()
		there.Addr = replica.Addr()
		copied := attach(t, there)
		eventually(t, func() bool { _, err := copied.Pool().Exec("DO (SELECT COUNT(*) FROM orders)"); return err == nil }, "the table does not come")

		got, polls := new(collected), newPolls()
		c := run(t, copied, "orders", Options{From: "beginning", Grace: time.Minute, wrap: polls.wrap}, got.handler())
		late := newConn(t, db)
		onConn(t, late, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
		insert(t, db, "orders", "two")
		got.waitFor(t, "two")
		polls.wait(t)
		polls.wait(t)
		onConn(t, late, "COMMIT")
		got.waitFor(t, "two", "late")
		require.NoError(t, c.end(t))

		// This account can see only the applied transactions.
		plain := attach(t, replica.User(t, there, "SELECT ON "+config.DBName+".*"))
		session, err := core.NewSession(t.Context(), plain, core.SessionOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, session.Close()) }()
		r := newReplication(session, 0)
		applies := func() bool {
			is, err := r.applies(t.Context())
			require.NoError(t, err)
			return is
		}
		require.Equal(t, s.IsMariaDB(), applies())
		insert(t, db, "orders", "three")
		eventually(t, applies, "it does not notice")

		// The source might also hold a lock of the group.
		ctx, cancel := context.WithCancel(t.Context())
		wrote := mysqltest.Result(func() error {
			for ctx.Err() == nil {
				insert(t, db, "orders", "more")
				<-time.After(10 * time.Millisecond) // some rows in every second are enough; more would only take time from other tests
			}
			return nil
		})
		member := attach(t, replica.User(t, there, "ALL ON "+config.DBName+".*"))
		for _, options := range []Options{{Group: "g"}, {Group: "s", MembersShare: true}} {
			for _, account := range []*notify.DB{copied, member} {
				c, err := New(account, "orders", options)
				require.NoError(t, err)
				eventually(t, func() bool { // it notices a transaction that is applied in the second in which it observes
					soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					return errors.Is(c.Run(soon, got.handler()), errReplica)
				}, "it does not notice")
			}
		}
		turns, err := New(copied, "orders", Options{Mode: modeHandshake})
		require.NoError(t, err)
		require.ErrorIs(t, turns.Run(t.Context(), got.handler()), notify.ErrOptions)
		p, err := producer.New(copied, "orders", producer.Options{Mode: modeHandshake})
		require.NoError(t, err)
		require.ErrorIs(t, p.Run(t.Context()), notify.ErrOptions)
		cancel()
		require.NoError(t, mysqltest.Receive(t, wrote))
	})
}

// After a promotion a gap no longer waits for writers of other servers.
func TestPromotedReplica(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		db := openTopic(t, shared.Start(t))
		insert(t, db, "orders", "one")
		do(t, db, "SET GLOBAL read_only = ON") // root may write
		got := new(collected)
		c := run(t, db, "orders", Options{From: "beginning", Strict: true, Grace: time.Hour}, got.handler())
		got.waitFor(t, "one")
		do(t, db, "SET GLOBAL read_only = OFF")
		conn := newConn(t, db)
		onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('never')", "ROLLBACK")
		insert(t, db, "orders", "three")
		got.waitFor(t, "one", "three")
		require.NoError(t, c.end(t))
	})
}

// attach opens a database whose tables exist, or come by replication.
func attach(t *testing.T, config *mysql.Config) *notify.DB {
	t.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
