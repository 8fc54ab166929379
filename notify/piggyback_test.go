package notify_test

import (
	"database/sql"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// newest is a piggyback whose rows are the ids after the largest that was shown.
type newest struct {
	query string

	mu      sync.Mutex
	results int
	largest int
	asked   int  // what it was when the last wait began
	again   bool // an id that was shown came again
	shown   int  // the largest id of the last result
	stale   bool // that is out of date
}

func (n *newest) Query() (query string, args []any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = n.largest
	return n.query, []any{n.asked}
}

func (n *newest) Result(rows *sql.Rows) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stale = rows == nil; n.stale {
		return nil
	}
	n.results++
	n.shown = 0
	for rows.Next() {
		if err := rows.Scan(&n.shown); err != nil {
			return err
		}
		n.again = n.again || n.shown <= n.asked
		n.largest = max(n.largest, n.shown)
	}
	return nil
}

// last is the last result, if it is not out of date, and how many there were.
func (n *newest) last() (shown int, fresh bool, results int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.shown, !n.stale, n.results
}

// showsAll inserts rows one by one, waits for each to be shown by what a wake brings, or,
// when that is out of date, by a look, and returns how many results there were.
func showsAll(t *testing.T, db *notify.DB, waiter notify.Carrier, p *newest, ring func()) int {
	t.Helper()
	head := settle(t, waiter)
	_, _, before := p.last()
	first := 0
	require.NoError(t, db.Pool().Get(&first, "SELECT COALESCE(MAX(id), 0) + 1 FROM orders"))
	for id := first; id < first+20; id++ {
		insert(t, db)
		ring()
		for shown := 0; shown < id; { // a wake may be for nothing
			next, err := waiter.Wait(t.Context(), head, patience)
			require.NoError(t, err)
			require.NotEqual(t, head, next, "not woken in %v: %d was shown, not %d", patience, shown, id)
			head = next
			var fresh bool
			if shown, fresh, _ = p.last(); !fresh {
				require.NoError(t, db.Pool().Get(&shown, "SELECT MAX(id) FROM orders"))
			}
		}
	}
	_, _, after := p.last()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.False(t, p.again, "the query has older arguments than its wait")
	return after - before
}

const largestIDs = "SELECT id FROM orders WHERE id > ? ORDER BY id"

// What a wake brings has the row that it announces. A query that fails brings nothing
// and harms nobody. Of those that share a session the first is carried, while it is there.
func TestGatePiggyback(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		db, listening := openProcess(t, config), openProcess(t, config)
		makeTopic(t, db)
		keeper := publish(t, config)
		ring := func() { keeper.Ring(0) }

		wrong, right := &newest{query: "SELECT id FROM nowhere WHERE id > ?", stale: true}, &newest{query: largestIDs, stale: true}
		first, second := openGate(t, listening, "orders", notify.GateOptions{}), openGate(t, listening, "orders", notify.GateOptions{})
		first.Carry(wrong)
		second.Carry(right)
		awaitHandover(t, s, config)
		require.Zero(t, showsAll(t, db, first, wrong, ring))
		require.Zero(t, showsAll(t, db, second, right, ring))

		require.NoError(t, first.Close())
		head := settle(t, second)
		ring() // the wait under way has the other still
		woken(t, second, head)
		require.Greater(t, showsAll(t, db, second, right, ring), 10)

		// Who keeps the gate has no wait that could bring anything.
		require.NoError(t, keeper.Close())
		admin := s.Admin(t)
		require.Eventually(t, func() bool {
			holder := holder(t, admin, gateLock(config, "keeper"))
			return holder != 0 && len(sessions(t, admin, config, "ID = ? AND STATE <> ?", holder, waiting)) == 1
		}, patience, tick)
		require.Zero(t, showsAll(t, db, second, right, func() {}))
	})
}

func TestGTIDPiggyback(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		db := openTopic(t, own)
		p := &newest{query: largestIDs, stale: true}
		_, waiter := openGTID(t, db)
		waiter.Carry(p)
		require.Greater(t, showsAll(t, db, waiter, p, func() {}), 10)
	})
}
