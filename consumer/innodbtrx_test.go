package consumer

import (
	"bytes"
	"context"
	"errors"
	"net"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// These tests disturb INNODB_TRX for the consumers of other tests, so they need a server of their own.
func TestInnoDBTrxOfAServer(t *testing.T) {
	mysqltest.NotShort(t, "TestGaps and TestViewOfASharedSession")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		t.Run("stale", func(t *testing.T) { staleInnoDBTrx(t, own) })
		t.Run("stale since another statement", func(t *testing.T) { staleSinceAnotherStatement(t, own) })
		t.Run("comments removed", func(t *testing.T) { commentsRemoved(t, own) })
		t.Run("a text that is no UTF-8", func(t *testing.T) { innoDBTrxWithATextThatIsNoUTF8(t, own) })
	})
}

// The server refreshes INNODB_TRX only if no session has read it for 100 ms. Another session
// that reads it all the time keeps it stale, which loses and delays no row.
func staleInnoDBTrx(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	polls := newPolls()
	var got collected
	c := run(t, db, "orders", Options{Group: "g", From: "beginning", Writers: writersInnoDBTrx, FlushInterval: -1, wrap: polls.wrap}, got.handler())
	insert(t, db, "orders", "one")
	got.waitFor(t, "one")
	eventually(t, func() bool { return stored(t, db, "g") == 1 }, "the offset is not stored")

	reads, stop := make(chan struct{}), make(chan struct{})
	var monitor sync.WaitGroup
	watcher := newConn(t, db)
	monitor.Go(func() {
		for {
			if _, err := watcher.ExecContext(context.WithoutCancel(t.Context()), "SELECT COUNT(*) FROM information_schema.INNODB_TRX"); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-stop:
				return
			case reads <- struct{}{}:
			case <-time.After(3 * time.Millisecond):
			}
		}
	})
	stopped := sync.OnceFunc(func() {
		close(stop)
		monitor.Wait()
	})
	defer stopped()
	for range 50 {
		<-reads
	}
	conn := newConn(t, db)
	onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
	insert(t, db, "orders", "three")
	got.waitFor(t, "one", "three")
	polls.wait(t)
	require.Equal(t, uint64(1), stored(t, db, "g"))
	onConn(t, conn, "COMMIT")
	got.waitFor(t, "one", "three", "late")
	stopped()
	onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('never')", "ROLLBACK")
	insert(t, db, "orders", "five")
	eventually(t, func() bool { return stored(t, db, "g") == 5 }, "the gap does not close")
	require.NoError(t, c.end(t))
}

// A stale view may show another statement of the reader's own session. It is no view without comments.
func staleSinceAnotherStatement(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	session, err := core.NewSession(t.Context(), db, core.SessionOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close()) }()
	watcher, lock := newConn(t, db), "'until released "+db.Name()+"'"
	shows := func() bool {
		return mysqltest.Value[int](t, watcher, "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id = ? AND trx_query LIKE 'SELECT GET%'", session.ID()) > 0
	}
	mysqltest.Eventually(t, "the view is stale when it is opened", func() bool {
		onConn(t, watcher, "DO GET_LOCK("+lock+", 0)")
		waits := mysqltest.Result(func() error {
			return session.Ask(t.Context(), func(ctx context.Context, conn *sqlx.Conn) error {
				var granted int
				_, err := conn.ExecContext(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
				if err == nil {
					err = conn.GetContext(ctx, &granted, "SELECT GET_LOCK("+lock+", 100) + RELEASE_LOCK("+lock+")")
				}
				_, ended := conn.ExecContext(ctx, "ROLLBACK")
				return errors.Join(err, ended)
			})
		})
		for !shows() {
			mysqltest.Window(t, 150*time.Millisecond) // the server refreshes the view if no session has read it for 100 ms
		}
		onConn(t, watcher, "DO RELEASE_LOCK("+lock+")")
		require.NoError(t, mysqltest.Receive(t, waits))
		view := newSharedTrx("", writersInnoDBTrx)
		err := session.Ask(t.Context(), func(ctx context.Context, conn *sqlx.Conn) error { return view.query(ctx, session, conn) })
		if !shows() {
			return false
		}
		require.NoError(t, err)
		require.Zero(t, view.fresh)
		return true
	})
}

// A prepared XA transaction whose session has left keeps its name, although another transaction may be it.
func TestNamesOfTransactions(t *testing.T) {
	t.Parallel()
	v := newSharedTrx("", writersInnoDBTrx)
	const started = "2026-01-02 03:04:05"
	v.last = []trx{{name: 1, thread: 7, started: started}, {name: 2, id: 50, thread: 9, started: started}}
	require.Equal(t, writer(2), v.nameOf(trx{id: 50, started: started}))
	require.Equal(t, writer(1), v.nameOf(trx{id: 60, thread: 7, started: started}))
}

// uncommented is a connection through something that removes comments from statements, as some proxies do.
type uncommented struct{ net.Conn }

var comment = regexp.MustCompile(`/\*.*?\*/`)

func (u uncommented) Write(b []byte) (int, error) {
	return u.Conn.Write(comment.ReplaceAllFunc(b, func(text []byte) []byte { return bytes.Repeat([]byte(" "), len(text)) }))
}

// Without the comment in its query, the reader can't know whether the view is fresh, so this way is refused with the reason.
func commentsRemoved(t *testing.T, own *mysqltest.Server) {
	config := own.Database(t)
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return uncommented{conn}, err
	}
	db := openConfig(t, config)
	session, err := core.NewSession(t.Context(), db, core.SessionOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close()) }()
	mysqltest.Eventually(t, "the way is refused", func() bool {
		_, err = newInnoDBTrx(t.Context(), db, session, writersInnoDBTrx)
		return err != nil
	})
	require.ErrorContains(t, err, "removes the comments")
	require.NoError(t, unfit(err), "another way may be tried")
}

// While a statement runs that is not UTF-8, MySQL refuses the view with an error. This
// delays the settling, and loses nothing.
func innoDBTrxWithATextThatIsNoUTF8(t *testing.T, s *mysqltest.Server) {
	db := openTopic(t, s)
	polls := newPolls()
	var got collected
	c := run(t, db, "orders", Options{Group: "g", From: "beginning", Writers: writersInnoDBTrx, wrap: polls.wrap}, got.handler())
	conn := newConn(t, db)
	onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
	session, holder, lock := mysqltest.Value[uint64](t, conn, "SELECT CONNECTION_ID()"), newConn(t, db), "'until released "+db.Name()+"'"
	onConn(t, holder, "DO GET_LOCK("+lock+", 0)")
	done := mysqltest.Result(func() error {
		_, err := conn.ExecContext(context.WithoutCancel(t.Context()),
			"INSERT INTO orders (payload) VALUES (CONCAT(_binary'\xff\xfe\x80', GET_LOCK("+lock+", 100)))")
		return err
	})
	running := "SELECT COUNT(*) FROM performance_schema.threads WHERE PROCESSLIST_ID = ? AND PROCESSLIST_STATE = 'User lock'"
	if s.IsMariaDB() {
		running = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = ? AND STATE = 'User lock'"
	}
	eventually(t, func() bool { return mysqltest.Value[int](t, db.Pool(), running, session) == 1 }, "the statement does not run")
	insert(t, db, "orders", "three")
	got.waitFor(t, "three")
	polls.wait(t)
	require.Zero(t, stored(t, db, "g"))
	onConn(t, holder, "DO RELEASE_LOCK("+lock+")")
	require.NoError(t, mysqltest.Receive(t, done))
	onConn(t, conn, "COMMIT")
	eventually(t, func() bool { return len(got.ids()) >= 3 }, "got %v", got.ids())
	require.ElementsMatch(t, []string{"three", "late", "\xff\xfe\x801"}, got.payloads())
	eventually(t, func() bool { return stored(t, db, "g") == 3 }, "the gap does not close")
	require.NoError(t, c.end(t))
}
