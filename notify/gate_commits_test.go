package notify_test

import (
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// looking is a gate of a process's own that listens to a topic and keeps it, and looks a hundred
// times a second where it does not sleep until the next commit.
func looking(t *testing.T, config *mysql.Config, topic string) (*notify.Gate, *spy) {
	t.Helper()
	looks := &spy{policy: backoff.NewConstantBackOff(10 * time.Millisecond)}
	gate := openGate(t, openProcess(t, config), topic, notify.GateOptions{Look: func() backoff.BackOff { return looks }})
	settle(t, gate)
	return gate, looks
}

// sleeps tells whether the keeper does for a while.
func (s *spy) sleeps() bool {
	before := len(s.given())
	timer := time.NewTimer(300 * time.Millisecond)
	<-timer.C
	return len(s.given()) == before
}

// Where the server tells of commits a keeper sleeps until the next one, and no wake comes late
// for it. What comes without a commit keeps it awake, once that has come.
func TestGateSleepsUntilACommit(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		config := tidy(t, own)
		admin := own.Admin(t)
		db := openProcess(t, config)
		makeTopic(t, db)
		keeper := account(t, own, config)
		gate, looks := looking(t, keeper, "orders")
		asleep := func() {
			t.Helper()
			require.Eventually(t, looks.sleeps, patience, tick)
		}
		const prompt = 20 * time.Second // below the wait for what comes without a commit, far above a busy machine's turns
		told := func(commit func()) {
			t.Helper()
			head := settle(t, gate)
			begun := time.Now()
			commit()
			woken(t, gate, head)
			require.Less(t, time.Since(begun), prompt)
		}
		for range 3 {
			asleep()
			told(func() { insert(t, db) })
			asleep()
			told(func() { require.NoError(t, notify.Flag{Topic: "orders"}.Set(t.Context(), db.Pool())) })
		}

		// The session that waits for commits is lost: rows are found meanwhile, and then it sleeps again.
		asleep()
		for range 3 {
			ids := sessions(t, admin, config, "STATE = ?", gtidWaiting)
			require.Len(t, ids, 1)
			before := len(looks.given())
			kill(t, admin, "CONNECTION", ids[0])
			told(func() { insert(t, db) })
			looks.await(t, before+2)
			asleep()
		}

		// It can't come back, and looks find what there is.
		mysqltest.Exec(t, db.Pool(), "ALTER USER "+keeper.User+" ACCOUNT LOCK")
		asleep()
		kill(t, admin, "CONNECTION", sessions(t, admin, config, "STATE = ?", gtidWaiting)[0])
		looks.await(t, len(looks.given())+30)
		told(func() { insert(t, db) })
		looks.await(t, len(looks.given())+30)
		mysqltest.Exec(t, db.Pool(), "ALTER USER "+keeper.User+" ACCOUNT UNLOCK")
		asleep()

		// A table that is locked hides a row, and no commit tells that it is free.
		asleep()
		head := settle(t, gate)
		before := len(looks.given())
		conn, err := db.Pool().Connx(t.Context())
		require.NoError(t, err)
		for _, query := range []string{"LOCK TABLES orders WRITE", "INSERT INTO orders (payload) VALUES ('x')"} {
			_, err := conn.ExecContext(t.Context(), query)
			require.NoError(t, err)
		}
		looks.await(t, before+1) // it looked in vain
		begun := time.Now()
		_, err = conn.ExecContext(t.Context(), "UNLOCK TABLES")
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		woken(t, gate, head)
		require.Less(t, time.Since(begun), prompt)

		// Nothing tells of these commits: the first is found in half a minute, others soon.
		uncounted := func() {
			conn, err := db.Pool().Connx(t.Context())
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close()) }()
			for _, query := range []string{
				"SET SESSION sql_log_bin = 0", "INSERT INTO orders (payload) VALUES ('x')", "SET SESSION sql_log_bin = 1",
			} {
				_, err := conn.ExecContext(t.Context(), query)
				require.NoError(t, err)
			}
		}
		asleep()
		head = settle(t, gate)
		uncounted()
		next, err := gate.Wait(t.Context(), head, 2*patience)
		require.NoError(t, err)
		require.NotEqual(t, head, next)
		for range 3 {
			told(uncounted)
		}
	})
}

// Without a table rings come without commits, and a keeper looks for bells as it does without GTIDs; so it does
// when GTIDs are switched off.
func TestGateStaysAwake(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		config := tidy(t, own)
		db := openProcess(t, config)
		makeTopic(t, db)
		_, looks := looking(t, config, "no table")
		looks.await(t, len(looks.given())+100)
		_, looks = looking(t, config, "orders")
		require.Eventually(t, looks.sleeps, patience, tick)
		mysqltest.Exec(t, db.Pool(), "SET GLOBAL gtid_mode = ON_PERMISSIVE")
		insert(t, db)
		looks.await(t, len(looks.given())+100)
	})
}

// A commit that has another server's number ends no wait for one of this server's.
func TestGateStaysAwakeOfOthersCommits(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		config := tidy(t, own)
		db := openProcess(t, config)
		makeTopic(t, db)
		_, looks := looking(t, config, "orders")
		require.Eventually(t, looks.sleeps, patience, tick)
		conn, err := db.Pool().Connx(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		for _, query := range []string{
			"SET SESSION gtid_next = 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1'", "INSERT INTO orders (payload) VALUES ('x')",
			"SET SESSION gtid_next = AUTOMATIC", "INSERT INTO orders (payload) VALUES ('x')", // which shows the other one
		} {
			_, err := conn.ExecContext(t.Context(), query)
			require.NoError(t, err)
		}
		looks.await(t, len(looks.given())+100)
	})
}

// A keeper that sleeps is woken by a knock of who comes, if that may set a flag. A producer that may not
// joins all the same, and its first row does it.
func TestGateKnocks(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		config := tidy(t, own)
		admin := own.Admin(t)
		makeTopic(t, openProcess(t, config))
		poor := own.User(t, config, "SELECT, INSERT ON "+config.DBName+".orders")
		listener, looks := looking(t, config, "orders")
		const prompt = 20 * time.Second // as above
		soon := func(what string, f func()) {
			t.Helper()
			require.Eventually(t, looks.sleeps, patience, tick)
			begun := time.Now()
			f()
			took := time.Since(begun)
			t.Log(what, took)
			require.Less(t, took, prompt, what)
		}
		begun := holder(t, admin, gateLock(config, "keeper"))

		var first *notify.Gate
		soon("a producer that can't knock joins", func() { first = publish(t, poor) })
		require.False(t, first.Heard())
		require.Equal(t, begun, holder(t, admin, gateLock(config, "keeper")), "nothing was committed")
		soon("its first row wakes, and it keeps the gate", func() {
			head := settle(t, listener)
			db := openDB(t, poor)
			insert(t, db)
			first.Ring(1)
			woken(t, listener, head)
			require.Eventually(t, first.Heard, patience, tick)
			awaitHandover(t, own, config)
		})
		require.NoError(t, first.Close())
		settle(t, listener)
		require.Eventually(t, func() bool { return holder(t, admin, gateLock(config, "keeper")) != 0 }, patience, tick)

		soon("a notification", func() {
			head := settle(t, listener)
			require.NoError(t, notify.Notify(t.Context(), openProcess(t, config), "orders"))
			woken(t, listener, head)
		})
		soon("a producer joins, and keeps the gate", func() {
			db := openProcess(t, config)
			looks = &spy{policy: backoff.NewConstantBackOff(10 * time.Millisecond)}
			keeper := openGate(t, db, "orders", notify.GateOptions{Look: func() backoff.BackOff { return looks }})
			require.NoError(t, keeper.Join(t.Context()))
			require.True(t, keeper.Heard())
			awaitHandover(t, own, config)
		})
		soon("another one joins", func() {
			require.True(t, publish(t, config).Heard())
			awaitBells(t, own, config, 1)
		})
		soon("its bell is heard again after a loss", func() {
			ids := sessions(t, admin, config, "STATE = ? AND INFO LIKE '%:bell%'", waiting)
			require.Len(t, ids, 1)
			kill(t, admin, "CONNECTION", ids[0])
			require.Eventually(t, func() bool {
				now := sessions(t, admin, config, "STATE = ? AND INFO LIKE '%:bell%'", waiting)
				return len(now) == 1 && now[0] != ids[0]
			}, patience, tick)
		})
	})
}

// A keeper by profession takes the gate over from a listener that sleeps.
func TestKeepKnocks(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		config := own.Database(t)
		makeTopic(t, openProcess(t, config))
		_, looks := looking(t, config, "orders")
		require.Eventually(t, looks.sleeps, patience, tick)
		begun := time.Now()
		runKeeper(t, openDB(t, config)).says(t, keeps)
		require.Less(t, time.Since(begun), 20*time.Second)
	})
}
