package notify_test

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

const (
	gtidWaiting = "Waiting for GTID to be committed"
	// soon is well below the 90 s after which a waiter looks whatever happens.
	soon = 10 * time.Second
)

// gtidFlags are of a server on which commits can be waited for.
var gtidFlags = []string{"--log-bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--server-id=1"}

// eachGTID is eachAtOnce for instances with GTIDs, one for each test.
func eachGTID(t *testing.T, f func(t *testing.T, own *mysqltest.Server)) {
	t.Helper()
	eachAtOnce(t, func(t *testing.T, s *mysqltest.Server) {
		if s.IsMariaDB() {
			t.Skip("MariaDB has nothing that waits for a commit")
		}
		f(t, s.Start(t, gtidFlags...))
	})
}

func openGTID(tb testing.TB, db *notify.DB) (*notify.Session, *notify.GTID) {
	tb.Helper()
	session := openSession(tb, db, 0)
	waiter := notify.NewGTID(db, session, notify.LargestID("orders", "id"))
	tb.Cleanup(func() { require.NoError(tb, waiter.Close()) })
	return session, waiter
}

// turn is what a Wait returns.
type turn struct {
	head notify.Head
	err  error
	took time.Duration
}

// beginWait begins a Wait that only a commit ends.
func beginWait(ctx context.Context, waiter notify.Waiter, seen notify.Head) <-chan turn {
	return result(func() turn {
		begun := time.Now()
		head, err := waiter.Wait(ctx, seen, time.Hour)
		return turn{head, err, time.Since(begun)}
	})
}

// requireHead is the end of a Wait by the change of the head to value.
func requireHead(tb testing.TB, waited <-chan turn, value uint64) notify.Head {
	tb.Helper()
	got := receive(tb, waited)
	require.NoError(tb, got.err)
	now, _ := got.head.Value()
	require.Equal(tb, value, now)
	require.Less(tb, got.took, soon, "it was woken")
	return got.head
}

func TestGTIDConforms(t *testing.T) {
	for name, test := range map[string]struct {
		source notify.Source
		change func(tb testing.TB, db *notify.DB)
	}{
		"largest id": {notify.LargestID("orders", "id"), insert},
		"counter":    {notify.FlagCounter("orders"), setFlag},
		"row":        {notify.FlagRow("orders"), setFlag},
	} {
		t.Run(name, func(t *testing.T) {
			eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
				conform(t, own, kind{
					open: func(db *notify.DB, session *notify.Session, _ backoff.BackOff) notify.Waiter {
						return notify.NewGTID(db, session, test.source)
					},
					change: test.change,
					state:  gtidWaiting,
				})
			})
		})
	}
}

// A writer that knows nothing of this wakes the waiter; a commit elsewhere does not.
func TestGTIDWakes(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		db := openTopic(t, own)
		run(t, db, "CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY)")
		admin := own.Admin(t)
		session, waiter := openGTID(t, db)
		seen, err := waiter.Head(t.Context())
		require.NoError(t, err)
		for i := range uint64(20) {
			waited := beginWait(t.Context(), waiter, seen)
			awaitState(t, admin, session.ID(), gtidWaiting)
			for range i % 3 {
				run(t, db, "INSERT INTO other VALUES ()")
				awaitState(t, admin, session.ID(), gtidWaiting)
			}
			require.Empty(t, waited)
			_, err := admin.ExecContext(t.Context(), "INSERT INTO "+db.Name()+".orders (payload) VALUES ('x')")
			require.NoError(t, err)
			seen = requireHead(t, waited, i+1)
		}
	})
}

func TestGTIDManyWaiters(t *testing.T) {
	const waiters = 50
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		db := openTopic(t, own)
		admin := own.Admin(t)
		var all []*notify.GTID
		for range waiters {
			_, waiter := openGTID(t, db)
			all = append(all, waiter)
		}
		for i := range uint64(10) {
			var waits []<-chan turn
			for _, waiter := range all {
				seen, err := waiter.Head(t.Context())
				require.NoError(t, err)
				waits = append(waits, beginWait(t.Context(), waiter, seen))
			}
			require.Eventually(t, func() bool { return waitsOf(t, admin) == waiters }, patience, tick)
			insert(t, db)
			for _, waited := range waits {
				requireHead(t, waited, i+1)
			}
		}
	})
}

// waitsOf is how many wait for a commit on the server.
func waitsOf(tb testing.TB, admin *sql.DB) (n int) {
	tb.Helper()
	require.NoError(tb, admin.QueryRowContext(tb.Context(),
		"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = ?", gtidWaiting).Scan(&n))
	return n
}

// While nothing commits a wait is one packet of three statements.
func TestGTIDIdle(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		db := openTopic(t, own)
		session := openSession(t, db, never)
		waiter := notify.NewGTID(db, session, notify.LargestID("orders", "id"))
		seen, err := waiter.Head(t.Context())
		require.NoError(t, err)
		questions := own.Questions(t)
		head, err := waiter.Wait(t.Context(), seen, 3*time.Second)
		require.NoError(t, err)
		assert.Equal(t, seen, head)
		assert.Equal(t, 3, int(own.Questions(t)-questions)-1)
		require.NoError(t, waiter.Close())
	})
}

// Commits elsewhere, hundreds a second, wake a waiter each 20 ms at most, and a row is
// found in their midst.
func TestGTIDOnABusyServer(t *testing.T) {
	const floor = 20 * time.Millisecond
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		db := openTopic(t, own)
		admin := own.Admin(t)
		session, waiter := openGTID(t, db)
		seen, err := waiter.Head(t.Context())
		require.NoError(t, err)
		waited := beginWait(t.Context(), waiter, seen)
		awaitState(t, admin, session.ID(), gtidWaiting)
		commits := keepCommitting(t, db, 3)

		for i := range uint64(3) { // the floor falls back after each row
			began, asked, committed := time.Now(), questionsOf(t, admin, session), commits.Load()
			require.Eventually(t, func() bool { return commits.Load()-committed >= 300 && time.Since(began) > 10*floor },
				patience, tick)
			packets := float64(questionsOf(t, admin, session)-asked) / 3
			assert.LessOrEqual(t, packets, time.Since(began).Seconds()/floor.Seconds()+8)
			assert.Greater(t, packets, 3.0, "each wake was for nothing")
			assert.Empty(t, waited)

			insert(t, db)
			seen = requireHead(t, waited, i+1)
			waited = beginWait(t.Context(), waiter, seen)
		}
	})
}

// questionsOf is how many statements the session has sent.
func questionsOf(tb testing.TB, admin *sql.DB, session *notify.Session) (n int) {
	tb.Helper()
	require.NoError(tb, admin.QueryRowContext(tb.Context(), `
		SELECT s.VARIABLE_VALUE FROM performance_schema.status_by_thread s JOIN performance_schema.threads t USING (THREAD_ID)
		WHERE t.PROCESSLIST_ID = ? AND s.VARIABLE_NAME = 'Questions'`, session.ID()).Scan(&n))
	return n
}

// keepCommitting commits to another table until the test ends, and counts.
func keepCommitting(t *testing.T, db *notify.DB, writers int) *atomic.Int64 {
	t.Helper()
	run(t, db, "CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY)")
	var all sync.WaitGroup
	var commits atomic.Int64
	stop := make(chan struct{})
	for range writers {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := db.Pool().Exec("INSERT INTO other VALUES ()"); !assert.NoError(t, err) {
					return
				}
				commits.Add(1)
			}
		})
	}
	t.Cleanup(func() {
		close(stop)
		all.Wait()
	})
	return &commits
}

// Whatever moment Close, or the context's end, meets: when it has returned there is no
// wait on the server, and Database looks for sessions at the test's end.
func TestGTIDLeavesNothing(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		db := openTopic(t, own)
		admin := own.Admin(t)
		for i := range 150 {
			session, waiter := openGTID(t, db)
			ctx, cancel := context.WithCancelCause(t.Context())
			waited := beginWait(ctx, waiter, notify.Head{})
			if i%3 == 0 {
				awaitState(t, admin, session.ID(), gtidWaiting)
			} else {
				timer := time.NewTimer(rand.N(2 * time.Millisecond))
				<-timer.C
			}
			begun, want := time.Now(), errOurs
			if i%2 == 0 {
				cancel(errOurs)
			} else {
				require.NoError(t, waiter.Close())
			}
			got := receive(t, waited)
			require.Error(t, got.err)
			require.Less(t, time.Since(begun), soon)
			if i%2 == 0 {
				require.ErrorIs(t, got.err, want)
			}
			require.Zero(t, waitsOf(t, admin))
			if i%3 == 0 {
				require.Error(t, session.Err(), "the context's end has closed it")
			}
			cancel(nil)
		}
	})
}

// Where no KILL gets through, the session is cut off, soon.
func TestGTIDIsCutOff(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		db := openTopic(t, own)
		admin := own.Admin(t)
		db.Pool().SetMaxOpenConns(1)
		hog, err := db.Pool().Connx(t.Context())
		require.NoError(t, err)
		session, waiter := openGTID(t, db)
		waited := beginWait(t.Context(), waiter, notify.Head{})
		awaitState(t, admin, session.ID(), gtidWaiting)
		require.NoError(t, receive(t, result(waiter.Close)))
		got := receive(t, waited)
		require.Error(t, got.err)
		require.Less(t, got.took, soon)
		require.Equal(t, 1, waitsOf(t, admin), "that is what the KILL is for")
		kill(t, admin, "CONNECTION", session.ID())
		require.NoError(t, hog.Close())
	})
}

func TestNoGTID(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *mysqltest.Server) {
		servers := []*mysqltest.Server{s}
		if !s.IsMariaDB() {
			servers = append(servers, s.Start(t, "--gtid-mode=ON", "--enforce-gtid-consistency=ON"), // no binary log
				s.Start(t, "--log-bin", "--gtid-mode=OFF"))
		}
		for _, server := range servers {
			_, waiter := openGTID(t, openTopic(t, server))
			_, err := waiter.Head(t.Context())
			require.ErrorIs(t, err, notify.ErrNoGTID)
			_, err = waiter.Wait(t.Context(), notify.Head{}, time.Hour)
			require.ErrorIs(t, err, notify.ErrNoGTID)
			require.NoError(t, waiter.Close())
		}
	})
}
