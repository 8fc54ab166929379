package notify_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// awaitStock waits until a number is in stock. A query that finds less takes a lock with this
// number, which its session then holds.
func awaitStock(ctx context.Context, db *notify.DB, n int) ([]int, error) {
	return notify.Await[int](ctx, db, "stock", "SELECT n FROM stock WHERE n >= ? OR GET_LOCK(CONCAT(DATABASE(), ?), 0) = 2", n, n)
}

// asked returns when awaitStock has run its query.
func asked(tb testing.TB, s *mysqltest.Server, config *mysql.Config, n int) {
	tb.Helper()
	admin := s.Admin(tb)
	require.Eventually(tb, func() bool { return holder(tb, admin, fmt.Sprint(config.DBName, n)) != 0 }, patience, tick)
}

// A change of the table wakes Await at once if the table has wake triggers for all changes, and otherwise within about a
// second.
func TestAwait(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		var took [2][]time.Duration
		var again [2]func()
		for i, trigger := range []bool{true, false} {
			config := s.Tidy(t, "/mqnotify/notify.")
			waits, changes := openDB(t, config), openProcess(t, config)
			mysqltest.Exec(t, changes.Pool(), "CREATE TABLE stock (n INT NOT NULL)")
			mysqltest.Exec(t, changes.Pool(), "INSERT INTO stock VALUES (0)")
			if trigger {
				options := wake.Options{Events: []string{"insert", "update", "delete"}, Logger: mysqltest.Logger(t, slog.LevelInfo)}
				require.NoError(t, wake.Install(t.Context(), changes, options, "stock"))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
			defer cancel()
			n := 0
			again[i] = func() {
				n++
				found := mysqltest.Result(func() error {
					got, err := awaitStock(ctx, waits, n)
					if err == nil && (len(got) != 1 || got[0] != n) {
						t.Errorf("%d: got %v", n, got)
					}
					return err
				})
				asked(t, s, config, n)
				<-time.After(2 * time.Second) // polls are a second apart by then
				begun := time.Now()
				mysqltest.Exec(t, changes.Pool(), "UPDATE stock SET n = ?", n)
				require.NoError(t, mysqltest.Receive(t, found))
				took[i] = append(took[i], time.Since(begun))
			}
		}
		// Compare the best with triggers, because a loaded machine may delay most of them, and the median of the others.
		mysqltest.Eventually(t, "an await with triggers ends in half of the time of one that polls", func() bool {
			for range mysqltest.Size(2, 4, 4) {
				again[0]()
				again[1]()
			}
			slices.Sort(took[1])
			return slices.Min(took[0]) < took[1][len(took[1])/2]/2
		})
		t.Log(took)
	})
}

// Await returns the cause of its context when that ends, and an error of the query.
func TestAwaitEnds(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Tidy(t, "/mqnotify/notify.")
		db := openDB(t, config)
		makeTopic(t, db)
		_, err := awaitStock(t.Context(), db, 1)
		require.True(t, server.Is(err, server.ErrNoSuchTable), "%v", err)

		mysqltest.Exec(t, db.Pool(), "CREATE TABLE stock (n INT NOT NULL)")
		mysqltest.Exec(t, db.Pool(), "INSERT INTO stock VALUES (0)")
		ctx, cancel := context.WithCancelCause(t.Context())
		found := mysqltest.Result(func() error {
			_, err := awaitStock(ctx, db, 1)
			return err
		})
		asked(t, s, config, 1)
		closing := errors.New("the shop closes")
		cancel(closing)
		require.ErrorIs(t, mysqltest.Receive(t, found), closing)
	})
}

// If locks do not reach the writers, Await polls. It continues after a restart of the server.
func TestAwaitOnAReadOnlyServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config := own.Database(t)
		db := openDB(t, config)
		makeTopic(t, db)
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE stock (n INT NOT NULL)")
		mysqltest.Exec(t, db.Pool(), "INSERT INTO stock VALUES (0)")
		const readOnly = "SET GLOBAL read_only = 1" // root may write
		mysqltest.Exec(t, db.Pool(), readOnly)
		found := mysqltest.Result(func() error {
			_, err := awaitStock(t.Context(), db, 1)
			return err
		})
		asked(t, own, config, 1)
		own.Kill()
		own.Restart(t)
		mysqltest.Exec(t, db.Pool(), readOnly)
		mysqltest.Exec(t, db.Pool(), "UPDATE stock SET n = 1")
		require.NoError(t, mysqltest.Receive(t, found))
	})
}

// A query that is slower than Await allows ends it, after a second run that shows that the connection is not the reason.
func TestAwaitSlowQuery(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, err := notify.Await[int](t.Context(), openDB(t, s.Database(t)), "orders", "SELECT SLEEP(60)")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// Await goes on after attempts to connect that took longer than the timeout in the DSN, or found no free connection.
func TestAwaitWhileConnectingTimesOut(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		changes := openDB(t, config)
		mysqltest.ExecAll(t, changes.Pool(), "CREATE TABLE stock (n INT NOT NULL)", "INSERT INTO stock VALUES (0)")
		var away atomic.Bool
		var tries atomic.Int32
		far := config.Clone()
		far.Timeout = 10 * time.Second
		far.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if away.Load() {
				if tries.Add(1)%2 == 0 {
					return nil, &mysql.MySQLError{Number: 1040, Message: "Too many connections"}
				}
				return nil, &net.OpError{Op: "dial", Net: network, Err: context.DeadlineExceeded} // as the driver's own dialer
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		}
		db := openDB(t, far)
		found := mysqltest.Result(func() error {
			_, err := awaitStock(t.Context(), db, 1)
			return err
		})
		asked(t, s, config, 1)
		away.Store(true)
		admin := s.Admin(t)
		for _, id := range mysqltest.Sessions(t, admin, db.Name(), "") {
			mysqltest.KillSession(t, admin, id)
		}
		require.Eventually(t, func() bool { return tries.Load() > 20 }, patience, tick)
		away.Store(false)
		mysqltest.Exec(t, changes.Pool(), "UPDATE stock SET n = 1")
		require.NoError(t, mysqltest.Receive(t, found))
	})
}
