package notify_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// inserter is a process that keeps the gate of "orders", and has a table "others" that
// no look sees.
func inserter(t *testing.T, s *mysqltest.Server, config *mysql.Config) (*notify.DB, *notify.Gate) {
	t.Helper()
	db := openProcess(t, config)
	makeTopic(t, db)
	mysqltest.Exec(t, db.Pool(), "CREATE TABLE others (id INT AUTO_INCREMENT PRIMARY KEY, v INT, made DATETIME DEFAULT CURRENT_TIMESTAMP)")
	gate := publish(t, config)
	awaitHandover(t, s, config)
	return db, gate
}

// What the caller gave stays as it was, beyond its end too.
func TestGateInsertKeepsArguments(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, gate := inserter(t, s, tidy(t, s))
		values := []any{1, 2, 3, 4, 5, 6, 7, 8}
		require.Eventually(t, func() bool {
			_, ok, err := gate.Insert(t.Context(), 2, two, values[:1]...)
			require.NoError(t, err)
			return ok
		}, patience, time.Millisecond)
		require.Equal(t, []any{1, 2, 3, 4, 5, 6, 7, 8}, values)
	})
}

const two = "INSERT INTO others (v) VALUES (?), (2)"

// inserted inserts two rows over the gate, when that can be.
func inserted(tb testing.TB, gate *notify.Gate) (stored notify.Inserted) {
	tb.Helper()
	require.Eventually(tb, func() (ok bool) {
		var err error
		stored, ok, err = gate.Insert(tb.Context(), 2, two, 1)
		require.NoError(tb, err)
		return ok
	}, patience, time.Millisecond)
	return stored
}

// An INSERT over the keeper's session wakes who listens, here and elsewhere, and tells
// the ids of its rows. It is in the pool's time zone.
func TestGateInsert(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		config.Params = map[string]string{"auto_increment_increment": "3", "time_zone": "'+05:00'"}
		db, gate := inserter(t, s, config)
		listener, _ := listen(t, config)
		_, ok, err := listener.Insert(t.Context(), 2, two, 1)
		require.NoError(t, err)
		require.False(t, ok, "it does not keep the gate")
		here, head := settle(t, gate), settle(t, listener)
		for range 20 {
			stored := inserted(t, gate)
			head, here = woken(t, listener, head), woken(t, gate, here)
			assert.EqualValues(t, 3, stored.Step)
			var v []int
			require.NoError(t, db.Pool().Select(&v, "SELECT v FROM others WHERE id IN (?, ?) ORDER BY id", stored.First, stored.First+stored.Step))
			assert.Equal(t, []int{1, 2}, v)
		}
		var apart int
		require.NoError(t, db.Pool().Get(&apart, "SELECT ABS(TIMESTAMPDIFF(MINUTE, MAX(made), NOW())) FROM others"))
		assert.Less(t, apart, 30)

		mysqltest.Exec(t, db.Pool(), "ALTER TABLE others MODIFY id INT NOT NULL DEFAULT 0, DROP PRIMARY KEY")
		assert.Zero(t, inserted(t, gate).First)
	})
}

// What the server refuses is not stored, and the gate rings as before; it is not tried
// again at once. One that waits for a table keeps a ring waiting, and not for long.
func TestGateInsertRefused(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		_, gate := inserter(t, s, config)
		listener, _ := listen(t, config)
		head := settle(t, listener)
		inserted(t, gate)
		woken(t, listener, head)

		refuses := func(ctx context.Context, query string) {
			t.Helper()
			_, ok, err := gate.Insert(ctx, 2, query, 1)
			require.NoError(t, err)
			require.False(t, ok)
		}
		left, cancel := context.WithCancel(t.Context())
		cancel()
		refuses(left, two)
		inserted(t, gate) // that one did not ask the server
		head = calm(t, listener)[0]
		// The first that finds the gate ready again after a ring asks the server, and leaves a lock there.
		const twins = "INSERT INTO others (id, v) VALUES (1, GET_LOCK(CONCAT(DATABASE(), '.asked'), ? - 1)), (1, 2)"
		require.Eventually(t, func() bool {
			refuses(t.Context(), twins)
			return holder(t, s.Admin(t), config.DBName+".asked") != 0
		}, patience, tick)
		refuses(t.Context(), two)
		require.Equal(t, head, settle(t, listener))
		gate.Ring(0)
		woken(t, listener, head)

		require.NoError(t, gate.Close())
		gate = publish(t, config)
		awaitHandover(t, s, config)
		head = settle(t, listener)
		_, locked := begin(t, s.Admin(t), "LOCK TABLES "+config.DBName+".others WRITE")
		require.NoError(t, mysqltest.Receive(t, locked))
		keeper := holder(t, s.Admin(t), gateLock(config, "keeper"))
		insertIt := func() <-chan error {
			return mysqltest.Result(func() error {
				_, ok, err := gate.Insert(t.Context(), 2, two, 1)
				assert.False(t, ok)
				return err
			})
		}
		refused := insertIt()
		require.Eventually(t, func() bool {
			select {
			case err := <-refused:
				require.NoError(t, err)
				refused = insertIt() // the gate was busy
			default:
			}
			return len(sessions(t, s.Admin(t), config, "ID = ? AND STATE = ?", keeper, waitsForTable)) == 1
		}, patience, tick)
		gate.Ring(0)
		woken(t, listener, head)
		require.NoError(t, mysqltest.Receive(t, refused), "the INSERT waits on")
	})
}

// An INSERT for which the keeper's session has ended before is in no doubt: nothing is stored, and the gate goes on.
func TestGateInsertAfterTheEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("TestGateInsert has the statement itself, TestGateRingAlone the end of a producer")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		db, gate := inserter(t, s, config)
		n := 0
		for range 5 {
			keeper := uint64(0)
			require.Eventually(t, func() bool {
				keeper = holder(t, s.Admin(t), gateLock(config, "keeper"))
				return keeper != 0
			}, patience, tick)
			inserted(t, gate)
			n += 2
			kill(t, s.Admin(t), "CONNECTION", keeper)
			awaitGone(t, s.Admin(t), keeper)
			_, ok, err := gate.Insert(t.Context(), 2, two, 1)
			require.NoError(t, err)
			if ok { // the gate was back
				n += 2
			}
			require.Equal(t, n, stored(t, db))
		}
	})
}

func stored(tb testing.TB, db *notify.DB) (n int) {
	tb.Helper()
	require.NoError(tb, db.Pool().Get(&n, "SELECT COUNT(*) FROM others"))
	return n
}

// An INSERT that is killed is in doubt, and the gate goes on: over the same session, or
// over another.
func TestGateInsertKilled(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		db, gate := inserter(t, s, config)
		admin := s.Admin(t)
		listener, _ := listen(t, config)
		head := settle(t, listener)
		mysqltest.Exec(t, db.Pool(), "CREATE TRIGGER slow BEFORE INSERT ON others FOR EACH ROW SET NEW.v = SLEEP(IF(NEW.v = 7, 60, 0))")
		for _, what := range []string{"QUERY", "CONNECTION"} {
			var err error
			failed := mysqltest.Result(func() error {
				for ok := false; !ok && err == nil; {
					_, ok, err = gate.Insert(t.Context(), 1, two, 7)
				}
				return err
			})
			var keeper uint64
			require.Eventually(t, func() bool {
				keeper = holder(t, admin, gateLock(config, "keeper"))
				return len(sessions(t, admin, config, "ID = ? AND STATE = ?", keeper, "User sleep")) == 1
			}, patience, tick)
			kill(t, admin, what, keeper)
			require.Error(t, mysqltest.Receive(t, failed))
			gate.Ring(0)
			head = woken(t, listener, head)
		}
		head = settle(t, listener)
		inserted(t, gate)
		woken(t, listener, head)
	})
}
