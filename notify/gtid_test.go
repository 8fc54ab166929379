package notify_test

import (
	"context"
	"database/sql"
	"slices"
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
	soon = 30 * time.Second
)

// gtidFlags are of a server on which commits can be waited for.
var gtidFlags = []string{"--log-bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--server-id=1"}

// eachGTID is mysqltest.Each for instances with GTIDs, one for each test.
func eachGTID(t *testing.T, f func(t *testing.T, own *mysqltest.Server)) {
	t.Helper()
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
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
	return mysqltest.Result(func() turn {
		begun := time.Now()
		head, err := waiter.Wait(ctx, seen, time.Hour)
		return turn{head, err, time.Since(begun)}
	})
}

// requireWoken is the end of a Wait by a change.
func requireWoken(tb testing.TB, waited <-chan turn, seen notify.Head) notify.Head {
	tb.Helper()
	got := mysqltest.Receive(tb, waited)
	require.NoError(tb, got.err)
	require.NotEqual(tb, seen, got.head)
	require.Less(tb, got.took, soon, "it was woken")
	return got.head
}

// TestGTID is what one server serves for, one after the other.
func TestGTID(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		for name, test := range map[string]func(t *testing.T, own *mysqltest.Server){
			"conforms": gtidConforms, "wakes": gtidWakes, "trusts": gtidTrusts, "many waiters": gtidManyWaiters, "idle": gtidIdle,
			"busy server": gtidOnABusyServer, "leaves nothing": gtidLeavesNothing, "is cut off": gtidIsCutOff,
			"killed": gtidKilled, "frozen network": gtidBehindAFrozenNetwork, "other origins": gtidOfOtherOrigins,
			"loses no wake": gtidLosesNoWake,
		} {
			t.Run(name, func(t *testing.T) { test(t, own) })
		}
	})
}

func gtidConforms(t *testing.T, own *mysqltest.Server) {
	for name, test := range map[string]struct {
		source notify.Source
		change func(tb testing.TB, db *notify.DB)
	}{
		"largest id": {notify.LargestID("orders", "id"), insert},
		"counter":    {notify.FlagCounter("orders"), setFlag},
		"row":        {notify.FlagRow("orders"), setFlag},
	} {
		t.Run(name, func(t *testing.T) {
			conform(t, own, kind{
				open: func(db *notify.DB, session *notify.Session, _ backoff.BackOff) notify.Waiter {
					return notify.NewGTID(db, session, test.source)
				},
				change: test.change,
				state:  gtidWaiting,
				inTurn: true,
			})
		})
	}
}

const (
	aRow    = "INSERT INTO orders (payload) VALUES ('x')"
	another = "INSERT INTO other VALUES ()"
)

// A writer that knows nothing of this wakes the waiter; a commit elsewhere does not.
func gtidWakes(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	mysqltest.Exec(t, db.Pool(), "CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY)")
	admin := own.Admin(t)
	session, waiter := openGTID(t, db)
	seen, err := waiter.Head(t.Context())
	require.NoError(t, err)
	for range 20 {
		waited := beginWait(t.Context(), waiter, seen)
		for range 2 {
			forNothing(t, db, admin, session)
		}
		require.Empty(t, waited)
		_, err := admin.ExecContext(t.Context(), "INSERT INTO "+db.Name()+".orders (payload) VALUES ('x')")
		require.NoError(t, err)
		seen = requireWoken(t, waited, seen)
	}
}

// forNothing commits elsewhere, and returns when the session's waiter sleeps again.
func forNothing(t *testing.T, db *notify.DB, admin *sql.DB, session *notify.Session) {
	t.Helper()
	mysqltest.AwaitState(t, admin, session.ID(), gtidWaiting)
	asked := questionsOf(t, admin, session)
	mysqltest.Exec(t, db.Pool(), another)
	require.Eventually(t, func() bool { return questionsOf(t, admin, session) > asked }, patience, tick)
	mysqltest.AwaitState(t, admin, session.ID(), gtidWaiting)
}

// When all that commits is the topic's, a commit is told without a look. One that was
// another's is told for nothing, once: the next ones are looked at.
func gtidTrusts(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	mysqltest.Exec(t, db.Pool(), "CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY)")
	admin := own.Admin(t)
	const rounds = 10
	as := 0
	for range rounds {
		looks := gtidLooks(t, db, admin)
		if slices.Equal([]int{1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 1, 0}, looks) {
			as++
		} else { // a wait that ends before its commit can be seen looks once more, on a busy machine
			t.Log("looks:", looks)
		}
	}
	assert.Greater(t, as, rounds/2)
}

// gtidLooks is how often a waiter looks for each of some commits.
func gtidLooks(t *testing.T, db *notify.DB, admin *sql.DB) (looks []int) {
	t.Helper()
	session, waiter := openGTID(t, db)
	seen, err := waiter.Head(t.Context())
	require.NoError(t, err)
	wakes := func(statements ...string) {
		for _, statement := range statements {
			waited := beginWait(t.Context(), waiter, seen)
			mysqltest.AwaitState(t, admin, session.ID(), gtidWaiting)
			asked := questionsOf(t, admin, session)
			mysqltest.Exec(t, db.Pool(), statement)
			seen = requireWoken(t, waited, seen)
			looks = append(looks, questionsOf(t, admin, session)-asked)
		}
	}
	atOnce := func() { seen = requireWoken(t, beginWait(t.Context(), waiter, seen), seen) }

	wakes(aRow, aRow, aRow, aRow, another)
	waited := beginWait(t.Context(), waiter, seen)
	for range 3 {
		forNothing(t, db, admin, session)
	}
	require.Empty(t, waited)
	mysqltest.Exec(t, db.Pool(), aRow)
	seen = requireWoken(t, waited, seen)

	// It has seen one row in a row. With the third it knows of the one for nothing.
	wakes(aRow, aRow, another, aRow, aRow)
	wakes(aRow)
	mysqltest.Exec(t, db.Pool(), aRow)
	atOnce()
	wakes(aRow)
	mysqltest.Exec(t, db.Pool(), another)
	atOnce()
	mysqltest.Exec(t, db.Pool(), another)
	mysqltest.Exec(t, db.Pool(), aRow)
	atOnce()
	waited = beginWait(t.Context(), waiter, seen)
	forNothing(t, db, admin, session)
	require.Empty(t, waited)
	mysqltest.Exec(t, db.Pool(), aRow)
	requireWoken(t, waited, seen)
	require.NoError(t, waiter.Close())
	return looks
}

func gtidManyWaiters(t *testing.T, own *mysqltest.Server) {
	const waiters = 50
	db := openTopic(t, own)
	admin := own.Admin(t)
	var all []*notify.GTID
	for range waiters {
		_, waiter := openGTID(t, db)
		all = append(all, waiter)
	}
	for range 10 {
		var waits []<-chan turn
		var seen []notify.Head
		for _, waiter := range all {
			head, err := waiter.Head(t.Context())
			require.NoError(t, err)
			seen = append(seen, head)
			waits = append(waits, beginWait(t.Context(), waiter, head))
		}
		require.Eventually(t, func() bool { return waitsOf(t, admin) == waiters }, patience, tick)
		insert(t, db)
		for i, waited := range waits {
			requireWoken(t, waited, seen[i])
		}
	}
}

// waitsOf is how many wait for a commit on the server.
func waitsOf(tb testing.TB, admin *sql.DB) (n int) {
	tb.Helper()
	require.NoError(tb, admin.QueryRowContext(tb.Context(),
		"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = ?", gtidWaiting).Scan(&n))
	return n
}

// While nothing commits a wait is one packet of three statements.
func gtidIdle(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	session := openSession(t, db, never)
	waiter := notify.NewGTID(db, session, notify.LargestID("orders", "id"))
	seen, err := waiter.Head(t.Context())
	require.NoError(t, err)
	asked := questionsOf(t, own.Admin(t), session)
	head, err := waiter.Wait(t.Context(), seen, 3*time.Second)
	require.NoError(t, err)
	assert.Equal(t, seen, head)
	assert.Equal(t, 3, questionsOf(t, own.Admin(t), session)-asked)
	require.NoError(t, waiter.Close())
}

// Commits elsewhere, hundreds a second, wake a waiter each 20 ms at most, and a row is
// found in their midst.
func gtidOnABusyServer(t *testing.T, own *mysqltest.Server) {
	const floor = 20 * time.Millisecond
	db := openTopic(t, own)
	admin := own.Admin(t)
	session, waiter := openGTID(t, db)
	seen, err := waiter.Head(t.Context())
	require.NoError(t, err)
	waited := beginWait(t.Context(), waiter, seen)
	mysqltest.AwaitState(t, admin, session.ID(), gtidWaiting)
	commits := keepCommitting(t, db, 3)

	most := 0.0
	for range 3 { // the floor falls back after each row
		began, asked, committed := time.Now(), questionsOf(t, admin, session), commits.Load()
		require.Eventually(t, func() bool { return commits.Load()-committed >= 300 && time.Since(began) > 10*floor },
			patience, tick)
		packets := float64(questionsOf(t, admin, session)-asked) / 3
		// Four times, since a look that takes as long as the floor lets the waits begin anew, at 1 ms.
		assert.LessOrEqual(t, packets, 4*time.Since(began).Seconds()/floor.Seconds()+8)
		most = max(most, packets)
		assert.Empty(t, waited)

		insert(t, db)
		seen = requireWoken(t, waited, seen)
		waited = beginWait(t.Context(), waiter, seen)
	}
	assert.Greater(t, most, 3.0, "each wake was for nothing; the writers alone may have had the processors once or twice")
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
	mysqltest.Exec(t, db.Pool(), "CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY)")
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
func gtidLeavesNothing(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	admin := own.Admin(t)
	for i := range mysqltest.Size(30, 75, 150) {
		session, waiter := openGTID(t, db)
		ctx, cancel := context.WithCancelCause(t.Context())
		waited := beginWait(ctx, waiter, notify.Head{})
		if i%3 == 0 {
			mysqltest.AwaitState(t, admin, session.ID(), gtidWaiting)
		} else {
			timer := time.NewTimer(within(2 * time.Millisecond))
			<-timer.C
		}
		begun, want := time.Now(), errOurs
		if i%2 == 0 {
			cancel(errOurs)
		} else {
			require.NoError(t, waiter.Close())
		}
		got := mysqltest.Receive(t, waited)
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
}

// Where no KILL gets through, the session is cut off, soon.
func gtidIsCutOff(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	admin := own.Admin(t)
	db.Pool().SetMaxOpenConns(1)
	hog, err := db.Pool().Connx(t.Context())
	require.NoError(t, err)
	session, waiter := openGTID(t, db)
	waited := beginWait(t.Context(), waiter, notify.Head{})
	mysqltest.AwaitState(t, admin, session.ID(), gtidWaiting)
	require.NoError(t, mysqltest.Receive(t, mysqltest.Result(waiter.Close)))
	got := mysqltest.Receive(t, waited)
	require.Error(t, got.err)
	require.Less(t, got.took, soon)
	require.Equal(t, 1, waitsOf(t, admin), "that is what the KILL is for")
	kill(t, admin, "CONNECTION", session.ID())
	require.NoError(t, hog.Close())
}

func TestNoGTID(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
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
