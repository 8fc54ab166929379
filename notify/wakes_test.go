package notify_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// Each wait tells what ended it, once.
func TestObserve(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openProcess(t, config)
		makeTopic(t, db)
		keeper := openGate(t, db, "orders", notify.GateOptions{})
		_, err := keeper.Head(t.Context())
		require.NoError(t, err)
		parked, _ := listen(t, config)
		poll := notify.NewPoll(openSession(t, db, never), notify.LargestID("orders", "id"), quick())
		auto := openAuto(t, openProcess(t, config), time.Minute)
		_, err = auto.Head(t.Context())
		require.NoError(t, err)
		for _, test := range []struct {
			name   string
			waiter notify.Waiter
			change func()
			want   notify.Wake
		}{
			{"a keeper's look", keeper, func() { insert(t, db) }, notify.WakeLook},
			{"a ring of the keeper's process", keeper, func() { keeper.Ring(0) }, notify.WakeRing},
			{"a keeper elsewhere", parked, func() { insert(t, db) }, notify.WakeRing},
			{"an auto", auto.Auto, func() { insert(t, db) }, notify.WakeRing},
			{"a poll", poll, func() { insert(t, db) }, notify.WakePoll},
		} {
			t.Run(test.name, func(t *testing.T) {
				var told []notify.Wake
				observed := notify.Observe(test.waiter, func(w notify.Wake) { told = append(told, w) })
				seen := settle(t, observed)
				require.Equal(t, notify.WakeTimeout, told[len(told)-1])
				told = nil
				test.change()
				_, err := observed.Wait(t.Context(), seen, patience)
				require.NoError(t, err)
				require.Equal(t, []notify.Wake{test.want}, told)
			})
		}
	})
}

func TestObserveCommits(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		db := openTopic(t, own)
		_, waiter := openGTID(t, db)
		var told []notify.Wake
		observed := notify.Observe(waiter, func(w notify.Wake) { told = append(told, w) })
		seen := settle(t, observed)
		told = nil
		insert(t, db)
		_, err := observed.Wait(t.Context(), seen, patience)
		require.NoError(t, err)
		require.Equal(t, []notify.Wake{notify.WakeCommit}, told)
	})
}

// An Auto that is moved says so.
func TestObserveMove(t *testing.T) {
	if testing.Short() {
		t.Skip("TestAutoOnAReadOnlyServer has the same move, TestObserve the causes of wakes")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		db := openTopic(t, own)
		auto := openAuto(t, db, time.Minute)
		told := make(chan notify.Wake, 1000)
		observed := notify.Observe(auto.Auto, func(w notify.Wake) { told <- w })
		head := settle(t, observed)
		_, err := own.Admin(t).ExecContext(t.Context(), "SET GLOBAL read_only = ON")
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			head, err = observed.Wait(t.Context(), head, 10*time.Millisecond)
			require.NoError(t, err)
			mode, _ := auto.Mode()
			return mode == "poll"
		}, patience, tick)
		moved := 0
		for len(told) > 0 {
			if <-told == notify.WakeMove {
				moved++
			}
		}
		require.Equal(t, 1, moved)
	})
}

// What a kill took away counts, what was released or closed does not.
func TestLostLocks(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		released, closed, killed := openSession(t, db, never), openSession(t, db, never), openSession(t, db, never)
		require.NoError(t, mustLock(t, released, lockName(db, "a")).Release(t.Context()))
		mustLock(t, closed, lockName(db, "b"))
		require.NoError(t, closed.Close())
		require.Zero(t, db.LostLocks())
		lost := mustLock(t, killed, lockName(db, "c"))
		mustLock(t, killed, lockName(db, "d"))
		kill(t, s.Admin(t), "CONNECTION", killed.ID())
		mysqltest.Await(t, lost.Lost(), "the lock is lost")
		require.Eventually(t, func() bool { return db.LostLocks() == 2 }, patience, tick)
	})
}
