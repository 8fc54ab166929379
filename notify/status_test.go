package notify_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

func gateStatus(tb testing.TB, db *notify.DB) notify.GateStatus {
	tb.Helper()
	status, err := notify.ReadGateStatus(tb.Context(), db, "orders")
	require.NoError(tb, err)
	return status
}

// phaseName is the lock that a session waits on to hear of the keeper of a gate, or
// of a bell.
func phaseName(ring string, holder *notify.Session, lane, phase int) string {
	return ring + ":" + strconv.FormatUint(holder.ID(), 36) + ":" + strconv.FormatInt(int64(lane), 36) + ":" + strconv.FormatInt(int64(phase), 36)
}

// park waits over a session of its own for a lock that another holds, until that lets
// it go, in a statement with text.
func park(tb testing.TB, db *notify.DB, name, text string) *notify.Session {
	tb.Helper()
	session := openSession(tb, db, never)
	parts := strings.Split(name, ":")
	sign := "/* " + strings.Join(parts[:max(1, len(parts)-3)], ":") + " */" // the ring's
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = session.Do(context.WithoutCancel(tb.Context()), func(conn *sqlx.Conn) error {
			_, err := conn.ExecContext(context.WithoutCancel(tb.Context()), "SELECT "+sign+" GET_LOCK(?, 60), RELEASE_LOCK(?), "+text, name, name)
			return err
		})
	}()
	tb.Cleanup(func() {
		_ = session.Close()
		<-done
	})
	return session
}

func ids(participants []notify.Participant) (all []uint64) {
	for _, p := range participants {
		all = append(all, p.ID)
	}
	return all
}

func TestGateStatusOfNobody(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		require.Equal(t, notify.GateStatus{Phase: -1}, gateStatus(t, db))
	})
}

// The locks tell who has which part, and what their waits are tells who listens.
func TestGateStatusByLocks(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db, admin := openDB(t, config), s.Admin(t)
		gate := lockNameOfGate(db, "orders")
		keeper, producer := openSession(t, db, never), openSession(t, db, never)
		mustLock(t, keeper, gate+":keeper")
		mustLock(t, keeper, gate+":bell0") // of the time before it kept the gate
		held := phaseName(gate, keeper, 0, 200)
		for lane := range 3 {
			mustLock(t, keeper, phaseName(gate, keeper, lane, 200))
		}
		require.Equal(t, 200, gateStatus(t, db).Phase)

		bell := phaseName(gate+":bellv", producer, 0, 7)
		for _, name := range []string{gate + ":bellv", bell, gate + ":claim"} {
			mustLock(t, producer, name)
		}
		another := phaseName(lockNameOfGate(db, "orders2"), keeper, 0, 200)
		mustLock(t, keeper, another)
		listeners := []*notify.Session{park(t, db, held, "1"), park(t, db, phaseName(gate, keeper, 2, 200), "2")}
		others := []*notify.Session{park(t, db, bell, "3"), park(t, db, another, "4"), park(t, db, gate+":keeper", "5")}
		for _, session := range append(others, listeners...) {
			mysqltest.AwaitState(t, admin, session.ID(), waiting)
		}

		status := gateStatus(t, db)
		assert.False(t, status.Partial)
		assert.Equal(t, keeper.ID(), status.Keeper.ID)
		assert.Equal(t, "root", status.Keeper.User)
		assert.NotEmpty(t, status.Keeper.Host)
		assert.Equal(t, producer.ID(), status.Claimant.ID)
		assert.Equal(t, 200, status.Phase)
		assert.Equal(t, []notify.Bell{{Slot: 31, Owner: status.Claimant}}, status.Bells)
		assert.ElementsMatch(t, []uint64{listeners[0].ID(), listeners[1].ID()}, ids(status.Listeners))

		// Who listens the longest comes first.
		serverTime(t, admin, 1100*time.Millisecond)
		late := park(t, db, held, "6")
		mysqltest.AwaitState(t, admin, late.ID(), waiting)
		status = gateStatus(t, db)
		require.Len(t, status.Listeners, 3)
		assert.Equal(t, late.ID(), status.Listeners[2].ID)
		assert.GreaterOrEqual(t, status.Listeners[0].For, time.Second)

		// What an account sees depends on its privileges, and it says so.
		part := notify.GateStatus{
			Keeper: notify.Participant{ID: keeper.ID()}, Claimant: notify.Participant{ID: producer.ID()}, Phase: 200,
			Bells: []notify.Bell{{Slot: 31, Owner: notify.Participant{ID: producer.ID()}}}, Partial: true,
		}
		own := "SELECT ON " + config.DBName + ".*"
		limited := openDB(t, s.User(t, config, own))
		assert.Equal(t, part, gateStatus(t, limited))
		mine := park(t, limited, held, "7")
		mysqltest.AwaitState(t, admin, mine.ID(), waiting)
		assert.Equal(t, []uint64{mine.ID()}, ids(gateStatus(t, limited).Listeners))
		grants := []string{"PROCESS ON *.*"}
		if !s.IsMariaDB() {
			grants = append(grants, "SELECT ON performance_schema.threads")
		}
		for _, grant := range grants {
			status := gateStatus(t, openDB(t, s.User(t, config, own, grant)))
			assert.False(t, status.Partial, grant)
			assert.Len(t, status.Listeners, 4, grant)
			assert.Equal(t, "root", status.Keeper.User, grant)
		}
	})
}

// Where the performance schema is off, reading its threads shows nothing.
func TestGateStatusWithoutPerformanceSchema(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t, "--performance-schema=OFF")
		config := s.Database(t)
		db := openDB(t, config)
		gate := lockNameOfGate(db, "orders")
		keeper := openSession(t, db, never)
		mustLock(t, keeper, gate+":keeper")
		assert.Equal(t, "root", gateStatus(t, db).Keeper.User)
		status := gateStatus(t, openDB(t, s.User(t, config, "SELECT ON "+config.DBName+".*", "SELECT ON performance_schema.threads")))
		assert.True(t, status.Partial)
		assert.Equal(t, notify.Participant{ID: keeper.ID()}, status.Keeper)
	})
}

// A statement whose text is no UTF-8, as one with bytes in it, hides nobody.
func TestGateStatusBesideBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("MySQL alone has the trouble; TestGateStatusByLocks has the status")
	}
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t) // MySQL can't list its sessions meanwhile, which other tests do
		db := openDB(t, s.Database(t))
		gate := lockNameOfGate(db, "orders")
		keeper := openSession(t, db, never)
		held := phaseName(gate, keeper, 0, 0)
		lock := mustLock(t, keeper, held)
		listener := park(t, db, held, "_binary'\xff\xfe\x80'")
		require.Eventually(t, func() bool {
			status, err := notify.ReadGateStatus(t.Context(), db, "orders")
			return err == nil && len(status.Listeners) == 1 && status.Listeners[0].ID == listener.ID()
		}, patience, tick)
		require.NoError(t, lock.Release(t.Context())) // before the end, which looks for what is left
	})
}

// lockNameOfGate is what the names of a gate's locks begin with.
func lockNameOfGate(db *notify.DB, topic string) string {
	return notify.LockName("gate", db.Name(), topic)
}

// The status of a gate in use is that of the protocol's story.
func TestGateStatusOfGates(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		watch := openDB(t, config)
		makeTopic(t, watch)
		process := func() *notify.Gate { return openGate(t, openDB(t, config), "orders", notify.GateOptions{}) }
		publish := func() {}
		// becomes waits for a status with so many bells and listeners.
		becomes := func(producer bool, bells, listeners int) (now notify.GateStatus) {
			t.Helper()
			require.Eventually(t, func() bool {
				publish()
				var err error
				now, err = notify.ReadGateStatus(t.Context(), watch, "orders")
				return err == nil && now.Keeper.ID != 0 && (now.Claimant.ID == now.Keeper.ID) == producer &&
					len(now.Bells) == bells && len(now.Listeners) == listeners && now.Phase >= 0
			}, patience, tick)
			return now
		}
		listen := func() {
			_, err := process().Head(t.Context())
			require.NoError(t, err)
		}
		listen()
		alone := becomes(false, 0, 0)
		listen()
		first := becomes(false, 0, 1)
		require.Equal(t, alone.Keeper.ID, first.Keeper.ID)

		p, q := process(), process()
		require.NoError(t, p.Join(t.Context()))
		kept := becomes(true, 0, 2)
		require.Contains(t, ids(kept.Listeners), first.Keeper.ID, "the keeper that was parks in its place")
		require.NoError(t, q.Join(t.Context()))
		with := becomes(true, 1, 2)
		require.Equal(t, kept.Keeper.ID, with.Keeper.ID)

		require.NoError(t, p.Close())
		publish = func() { q.Ring(0) } // a ring finds that no producer keeps the gate
		require.Equal(t, with.Bells[0].Owner.ID, becomes(true, 0, 2).Keeper.ID)
		require.NoError(t, q.Close())
		becomes(false, 0, 1)
	})
}
