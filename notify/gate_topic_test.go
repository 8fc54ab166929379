package notify_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
	schema "github.com/mqnotify/mqnotify/sql"
)

// Topics do not wake each other, however much their names are alike to a server that
// folds them, or that knows 64 characters. Not in parallel with the package's other tests: a session that is lost in a
// stall wakes its topic, too, which this test would take for another topic's wake.
func TestGateTopicsAreApart(t *testing.T) {
	long := strings.Repeat("l", 60)
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		listening, publishing := openProcess(t, config), openProcess(t, config)
		names := []string{"orders", "Orders", "orders:", long + "one", long + "two", long + "TWO", "ORDERS", "Bestellungen für heute"}
		names = names[:mysqltest.Size(4, len(names), len(names))]
		listeners := make([]*notify.Gate, len(names))
		producers := make([]*notify.Gate, len(names))
		for i, name := range names {
			if !strings.Contains(name, ":") { // one that is no table's
				require.NoError(t, schema.Init(t.Context(), listening.Pool(), name))
			}
			listeners[i] = openGate(t, listening, name, notify.GateOptions{})
			producers[i] = openGate(t, publishing, name, notify.GateOptions{})
			_, err := listeners[i].Head(t.Context())
			require.NoError(t, err)
		}
		joinAll(t, producers...)
		for _, name := range names { // whose bell is heard may have the gate later, and that wakes
			awaitHandoverOf(t, s, config, name)
		}
		heads := calm(t, listeners...)
		for i := range names {
			producers[i].Ring(0)
			woken(t, listeners[i], heads[i])
			heads[i] = calm(t, listeners[i])[0]
			for other := range names {
				head, err := listeners[other].Wait(t.Context(), heads[other], 0)
				require.NoError(t, err)
				assert.Equal(t, heads[other], head, "%s wakes %s", names[i], names[other])
				heads[other] = head
			}
		}
		for i, name := range names { // and their tables are found
			if !strings.Contains(name, ":") {
				mysqltest.Exec(t, listening.Pool(), "INSERT INTO "+ident.Quote(name)+" (payload) VALUES ('x')")
				woken(t, listeners[i], heads[i])
			}
		}
	})
}

// A topic needs no table. One that comes later is looked at from then on, and one that
// goes ends nothing. Where the table has no key it is the flag that is looked at.
func TestGateTableComesAndGoes(t *testing.T) {
	changes := map[string]func(tb testing.TB, db *notify.DB){
		"keyed": func(tb testing.TB, db *notify.DB) {
			tb.Helper()
			mysqltest.Exec(tb, db.Pool(), "INSERT INTO keyed (payload) VALUES ('x')")
		},
		"flagged": func(tb testing.TB, db *notify.DB) {
			tb.Helper()
			require.NoError(tb, notify.Flag{Topic: "flagged"}.Set(tb.Context(), db.Pool()))
		},
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		again := notify.GateOptions{}.WithDescribeAgain(mysqltest.Size(time.Second/2, 2*time.Second, 0))
		db, publishing := openProcess(t, config), openProcess(t, config)
		listeners, producers := make(map[string]*notify.Gate), make(map[string]*notify.Gate)
		for topic := range changes {
			require.NoError(t, schema.Init(t.Context(), db.Pool(), topic))
			listeners[topic] = openGate(t, db, topic, again)
			producers[topic] = openGate(t, publishing, topic, again)
		}
		mysqltest.Exec(t, db.Pool(), "ALTER TABLE flagged MODIFY id BIGINT, DROP PRIMARY KEY")
		for topic, change := range changes {
			head := settle(t, listeners[topic])
			change(t, db)
			woken(t, listeners[topic], head)
			require.NoError(t, producers[topic].Join(t.Context()))
		}
		mysqltest.Exec(t, db.Pool(), "RENAME TABLE keyed TO hidden1, flagged TO hidden2, "+schema.FlagTable+" TO hidden3")
		for topic, listener := range listeners {
			head := settle(t, listener)
			producers[topic].Ring(0)
			woken(t, listener, head)
			settle(t, listener)
		}
		mysqltest.Exec(t, db.Pool(), "RENAME TABLE hidden1 TO keyed, hidden2 TO flagged, hidden3 TO "+schema.FlagTable)
		for topic, change := range changes {
			head := settle(t, listeners[topic])
			for next, begun := head, time.Now(); next == head; { // the keeper asks again now and then
				require.Less(t, time.Since(begun), 2*patience)
				change(t, db)
				var err error
				next, err = listeners[topic].Wait(t.Context(), head, 200*time.Millisecond)
				require.NoError(t, err)
			}
			head = settle(t, listeners[topic])
			change(t, db)
			woken(t, listeners[topic], head)
		}
	})
}

// An account that may not read the topic's table leaves the keeping to others, and is
// woken like them.
func TestGateOfAnAccountThatMayNotLook(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		admin := s.Admin(t)
		db := openProcess(t, config)
		makeTopic(t, db)
		limited := s.User(t, config, "INSERT ON "+config.DBName+".orders")
		first := openGate(t, openProcess(t, limited), "orders", notify.GateOptions{})
		producer := publish(t, limited)
		require.Zero(t, holder(t, admin, gateLock(config, "claim")))
		require.Zero(t, holder(t, admin, gateLock(config, "keeper")))
		heard := mysqltest.Result(func() error {
			_, err := first.Head(t.Context())
			return err
		})
		fit, _ := listen(t, config)
		require.NoError(t, mysqltest.Receive(t, heard))
		var keeper uint64
		require.Eventually(t, func() bool { // the limited one tries, for a moment
			keeper = holder(t, admin, gateLock(config, "keeper"))
			return keeper != 0 && !slices.Contains(sessions(t, admin, config, "USER = ?", limited.User), keeper)
		}, patience, tick)

		heads := []notify.Head{settle(t, first), settle(t, fit)}
		insert(t, db)
		woken(t, first, heads[0])
		woken(t, fit, heads[1])
		awaitBells(t, s, config, 1)
		heads = []notify.Head{settle(t, first), settle(t, fit)}
		producer.Ring(0)
		woken(t, first, heads[0])
		woken(t, fit, heads[1])
		require.Equal(t, keeper, holder(t, admin, gateLock(config, "keeper")))
		require.Zero(t, holder(t, admin, gateLock(config, "claim")))
	})
}
