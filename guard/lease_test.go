package guard_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// requireToken requires that the token was refused, and why.
func requireToken(t *testing.T, err error, want guard.TokenError) {
	t.Helper()
	var wrong *guard.TokenError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, want, *wrong)
}

func inTx(t *testing.T, db *notify.DB, f func(tx notify.Tx) error) error {
	t.Helper()
	tx, err := db.Pool().BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	return f(tx)
}

// A lease needs no connection: a program takes it and ends, and another program
// continues or releases it, by its token. Tokens only grow. The token of another lease,
// an old one and one that was never given release nothing and renew nothing.
func TestLeaseTokens(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		bothCounts(t, s, func(t *testing.T, db *notify.DB, config *mysql.Config) {
			lease := newLease(t, db, "x", time.Minute)
			require.Zero(t, stateOf(t, db, "x"))
			requireToken(t, lease.Release(t.Context(), 1), guard.TokenError{Name: "x", Token: 1})
			var old uint64
			for range 5 {
				taker, err := notify.OpenConfig(config)
				require.NoError(t, err)
				token, err := newLease(t, taker, "x", time.Minute).Take(t.Context())
				require.NoError(t, err)
				require.NoError(t, taker.Close())
				require.Greater(t, token, old)
				status := stateOf(t, db, "x")
				require.True(t, status.Held)
				require.Equal(t, token, status.Token)
				require.InDelta(t, time.Minute, status.Left, float64(20*time.Second))
				require.Less(t, status.For, 20*time.Second)
				_, err = lease.Take(t.Context())
				require.ErrorIs(t, err, notify.ErrNotAcquired)

				for _, wrong := range []uint64{0, token - 1, token + 1, 1 << 63, 1<<64 - 1} {
					refused := guard.TokenError{Name: "x", Token: wrong, Current: token, Held: true}
					requireToken(t, lease.Release(t.Context(), wrong), refused)
					_, err := lease.Resume(t.Context(), wrong)
					requireToken(t, err, refused)
					requireToken(t, inTx(t, db, func(tx notify.Tx) error { return lease.Fence(t.Context(), tx, wrong) }), refused)
				}
				require.NoError(t, inTx(t, db, func(tx notify.Tx) error { return lease.Fence(t.Context(), tx, token) }))
				_, err = lease.Take(t.Context())
				require.ErrorIs(t, err, notify.ErrNotAcquired)

				held, err := lease.Resume(t.Context(), token)
				require.NoError(t, err)
				require.Equal(t, token, held.Token())
				require.NoError(t, held.Err())
				require.NoError(t, held.Release(t.Context()))
				requireToken(t, lease.Release(t.Context(), token), guard.TokenError{Name: "x", Token: token, Current: token})
				old = token
			}
			token, err := lease.Take(t.Context())
			require.NoError(t, err)
			require.NoError(t, lease.Release(t.Context(), token))
			require.Equal(t, leaseStatus{Token: token}, stateOf(t, db, "x"))
		})
	})
}

// The next holder gets a lease that is not renewed when it expires, with a larger token. The
// previous holder can then neither release, renew nor fence. A lease that is renewed lasts.
func TestLeaseExpires(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openState(t, s)
		const ttl, longer = time.Second, 9 * time.Second // a stall loses none that is renewed
		lease, other := newLease(t, db, "x", ttl), newLease(t, db, "renewed", longer)
		renewed := mustLock(t, other)
		begun := time.Now()
		token, err := lease.Take(t.Context())
		require.NoError(t, err)
		next := mustLock(t, newLease(t, db, "x", longer))
		require.GreaterOrEqual(t, time.Since(begun), ttl)
		require.Equal(t, token+1, next.Token())
		refused := guard.TokenError{Name: "x", Token: token, Current: token + 1, Held: true}
		requireToken(t, lease.Release(t.Context(), token), refused)
		requireToken(t, inTx(t, db, func(tx notify.Tx) error { return lease.Fence(t.Context(), tx, token) }), refused)
		_, err = lease.Resume(t.Context(), token)
		requireToken(t, err, refused)
		require.NoError(t, next.Release(t.Context()))

		require.Eventually(t, func() bool { // the fourth is later than its first end
			return mysqltest.Value[int](t, db.Pool(), "SELECT renewals FROM mqnotify_lease WHERE name = 'renewed'") >= mysqltest.Size(1, 4, 6)
		}, patience, tick)
		require.NoError(t, renewed.Err())
		_, err = other.TryLock(t.Context())
		require.ErrorIs(t, err, notify.ErrNotAcquired)
		require.NoError(t, renewed.Release(t.Context()))

		// An expired lease is lost even if no other holder took it.
		token, err = lease.Take(t.Context())
		require.NoError(t, err)
		require.Eventually(t, func() bool { return !stateOf(t, db, "x").Held }, patience, tick)
		_, err = lease.Resume(t.Context(), token)
		requireToken(t, err, guard.TokenError{Name: "x", Token: token, Current: token})
		require.ErrorContains(t, err, "take it again")
	})
}

// A statement of a lost connection may run after its repetition, or both may
// run. The token that the caller has stays the lease's, and no renewal makes the lease shorter.
func TestLeaseStatementsOfLostConnections(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := openState(t, s)
		lease := newLease(t, db, "x", time.Minute)
		token, err := guard.TakeAs(t.Context(), lease, "first")
		require.NoError(t, err)
		again, err := guard.TakeAs(t.Context(), lease, "first")
		require.NoError(t, err)
		require.Equal(t, token, again)
		_, err = guard.TakeAs(t.Context(), lease, "second")
		require.ErrorIs(t, err, notify.ErrNotAcquired)
		require.NoError(t, guard.Renew(t.Context(), lease, token))

		// A session's time is the begin of its statement, which may be long ago.
		config = config.Clone()
		config.Params = map[string]string{"timestamp": "UNIX_TIMESTAMP() - 30"}
		late := newLease(t, openDB(t, config), "x", time.Minute)
		left := func() time.Duration { return stateOf(t, db, "x").Left }
		require.NoError(t, guard.Renew(t.Context(), late, token))
		require.Greater(t, left(), 45*time.Second)
		again, err = guard.TakeAs(t.Context(), late, "first")
		require.NoError(t, err)
		require.Equal(t, token, again)
		require.Greater(t, left(), 45*time.Second)

		require.NoError(t, lease.Release(t.Context(), token))
		next, err := guard.TakeAs(t.Context(), lease, "second")
		require.NoError(t, err)
		require.Equal(t, token+1, next)
	})
}

// A holder that can't reach the server knows that the lease is lost before the server
// gives it to another one, and its context has the reason. Other holders need no connection that it
// would have to give up.
func TestLeaseLost(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		direct := openDB(t, config)
		require.NoError(t, schema.Init(t.Context(), direct.Pool()))
		for name, cut := range map[string]func(p *mysqltest.Proxy){
			"frozen": (*mysqltest.Proxy).Freeze, "down": (*mysqltest.Proxy).Down,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				proxy := s.Proxy(t)
				const ttl = 3 * time.Second
				held := mustLock(t, newLease(t, openDB(t, proxy.Config(config)), name, ttl))
				working, cancel := held.Context(t.Context())
				defer cancel()
				gone := lost(t, held)
				cut(proxy)
				next := mustLock(t, newLease(t, direct, name, time.Minute))
				require.ErrorIs(t, held.Err(), notify.ErrLockLost, "known before")
				require.Equal(t, held.Token()+1, next.Token())
				require.NoError(t, next.Release(t.Context()))
				mysqltest.Await(t, working.Done(), "the loss")
				require.ErrorIs(t, context.Cause(working), notify.ErrLockLost)
				require.ErrorIs(t, held.Err(), notify.ErrLockLost)
				mysqltest.Await(t, gone, "the other context")
				require.ErrorIs(t, held.Release(t.Context()), notify.ErrLockLost)
				proxy.Down() // ends what a freeze holds
			})
		}
	})
}

// A holder learns at its next renewal that the lease was taken from it, for example by
// hand.
func TestLeaseTakenAway(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openState(t, s)
		lease := newLease(t, db, "x", 12*time.Second) // or a stall would lose it before the renewal does
		held := mustLock(t, lease)
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_lease SET token = token + 1, expires_at = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR")
		mysqltest.Await(t, lost(t, held), "the loss")
		require.ErrorAs(t, held.Err(), new(*guard.TokenError))
		require.ErrorIs(t, held.Release(t.Context()), notify.ErrLockLost)
		require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_lease WHERE expires_at > UTC_TIMESTAMP(6)"))

		// Or at its release, if that comes first.
		lease = newLease(t, db, "y", time.Hour)
		held = mustLock(t, lease)
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_lease SET token = token + 1")
		require.ErrorIs(t, held.Release(t.Context()), notify.ErrLockLost)
		require.ErrorIs(t, held.Err(), notify.ErrLockLost)
	})
}

// The renewals survive lost connections and a restart of the server.
func TestLeaseSurvives(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config := own.Database(t)
		direct := openDB(t, config)
		require.NoError(t, schema.Init(t.Context(), direct.Pool()))
		proxy := own.Proxy(t)
		held := mustLock(t, newLease(t, openDB(t, proxy.Config(config)), "x", 9*time.Second))
		renewals := func() int { return mysqltest.Value[int](t, direct.Pool(), "SELECT renewals FROM mqnotify_lease") }
		for range mysqltest.Size(1, 2, 3) {
			before := renewals()
			proxy.Down()
			proxy.Up()
			require.Eventually(t, func() bool { return renewals() > before }, patience, tick)
			require.NoError(t, held.Err())
		}
		require.NoError(t, held.Release(t.Context()))

		held = mustLock(t, newLease(t, openDB(t, proxy.Config(config)), "y", 10*time.Minute))
		own.Kill()
		own.Restart(t)
		require.NoError(t, held.Err())
		require.NoError(t, held.Release(t.Context()), "over a new connection")
		require.Eventually(t, func() bool { return direct.Pool().Ping() == nil }, patience, tick)
		require.Equal(t, 0, mysqltest.Value[int](t, direct.Pool(), "SELECT COUNT(*) FROM mqnotify_lease WHERE name = 'y' AND expires_at > UTC_TIMESTAMP(6)"))
	})
}

// No other holder takes the lease while a transaction is fenced by it, even after the lease's end, so
// the transaction commits as the only holder.
func TestLeaseFence(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openState(t, s)
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE resource (n INT)")
		lease := newLease(t, db, "x", 12*time.Second)
		token, err := lease.Take(t.Context())
		require.NoError(t, err)
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.Exec("INSERT INTO resource VALUES (1)")
		require.NoError(t, err)
		require.NoError(t, lease.Fence(t.Context(), tx, token))
		next := mysqltest.Result(func() int {
			held := mustLock(t, newLease(t, db, "x", time.Minute)) // which is not renewed in here
			n := mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM resource")
			return n + errs(held.Release(context.Background()))
		})
		require.Eventually(t, func() bool {
			var expired bool
			err := tx.Get(&expired, "SELECT expires_at < UTC_TIMESTAMP(6) - INTERVAL 300000 MICROSECOND FROM mqnotify_lease")
			return err == nil && expired
		}, patience, tick)
		select {
		case <-next:
			t.Fatal("taken from a transaction that is fenced by it")
		default:
		}
		require.NoError(t, tx.Commit())
		require.Equal(t, 1, mysqltest.Receive(t, next), "the next holder sees what was committed")
		require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT renewals FROM mqnotify_lease"), "a change, which other servers of a cluster learn of")
		require.ErrorIs(t, lease.Fence(t.Context(), db.Pool(), token), notify.ErrOptions)
	})
}

func errs(err error) int {
	if err != nil {
		return 1000
	}
	return 0
}

// A lease that was renewed after a transaction's first read can still be fenced, if the transaction is READ COMMITTED.
// Some servers refuse the default level; the error then names the remedy.
func TestLeaseFenceAfterARenewal(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openState(t, s)
		lease := newLease(t, db, "x", time.Minute)
		token, err := lease.Take(t.Context())
		require.NoError(t, err)
		fence := func(isolation sql.IsolationLevel) error {
			tx, err := db.Pool().BeginTxx(t.Context(), &sql.TxOptions{Isolation: isolation})
			require.NoError(t, err)
			defer func() { _ = tx.Rollback() }()
			var n int
			require.NoError(t, tx.GetContext(t.Context(), &n, "SELECT COUNT(*) FROM mqnotify_once"))
			held, err := lease.Resume(t.Context(), token)
			require.NoError(t, err)
			guard.Abandon(held)
			return lease.Fence(t.Context(), tx, token)
		}
		require.NoError(t, fence(sql.LevelReadCommitted))
		if err := fence(sql.LevelRepeatableRead); err != nil {
			require.True(t, server.Is(err, server.ErrCheckRead), err)
			require.ErrorContains(t, err, "begin the transaction READ COMMITTED")
		}
	})
}

func TestLeaseRefuses(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openState(t, s)
		for _, o := range []guard.MutexOptions{
			{TTL: -time.Second}, {TTL: time.Millisecond}, {TTL: 1 << 62},
			{TTL: time.Second, Margin: -1}, {TTL: time.Second, Margin: 501 * time.Millisecond}, {Margin: 16 * time.Second},
		} {
			o.Kind = "lease"
			_, err := guard.NewMutex(db, "x", o)
			require.ErrorIs(t, err, notify.ErrOptions, o)
			require.ErrorContains(t, err, "give ", o)
		}
		for _, open := range mutexes {
			for _, name := range []string{"", "x ", "a\x00b", "\xff"} {
				_, err := open(db, name)
				require.ErrorIs(t, err, notify.ErrOptions, "%q", name)
			}
		}
		for _, o := range []guard.MutexOptions{
			{Kind: "Lease"}, {TTL: time.Second}, {TTL: 30 * time.Second, Margin: time.Second}, {Kind: "row", TTL: time.Minute}, {Kind: "flag", Margin: time.Second},
		} {
			_, err := guard.NewMutex(db, "x", o)
			require.ErrorIs(t, err, notify.ErrOptions, o)
			require.ErrorContains(t, err, "give ", o)
		}
		for text, e := range map[string]guard.Every{
			"of 0s": {Key: "x"}, "-1h0m0s": {Key: "x", Interval: -time.Hour}, "it is empty": {Interval: time.Hour}, "give hour, day": {Key: "x", Period: "year"},
			"give one of them": {Key: "x", Interval: time.Hour, Period: "day"}, "a Zone without": {Key: "x", Interval: time.Hour, Zone: time.Local},
		} {
			_, err := e.Try(t.Context(), db)
			require.ErrorIs(t, err, notify.ErrOptions)
			require.ErrorContains(t, err, text)
			_, err = e.Due(t.Context(), db)
			require.ErrorIs(t, err, notify.ErrOptions)
		}

		other := openDB(t, s.Database(t))
		for kind, open := range mutexes {
			m, err := open(other, "x")
			require.NoError(t, err)
			if kind == "advisory" {
				require.NoError(t, mustLock(t, m).Release(t.Context()), "it needs no table")
				continue
			}
			_, err = m.Lock(t.Context())
			require.ErrorIs(t, err, notify.ErrNoState, kind)
		}
		_, config := openState(t, s)
		stranger := openDB(t, s.User(t, config, "SELECT ON "+config.DBName+".*"))
		_, err := newLease(t, stranger, "x", time.Second).TryLock(t.Context())
		require.ErrorContains(t, err, "mqnotify grants")
	})
}
