package notify_test

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// follower is a process that reads the topic's rows when it is woken and never else:
// its waits have no bound, and a wake that is lost shows.
type follower struct {
	db   *notify.DB
	gate *notify.Gate

	mu    sync.Mutex
	reads []readUpTo
}

// readUpTo is the largest id that a follower has read, and when.
type readUpTo struct {
	id   int64
	when time.Time
}

func follow(tb testing.TB, config *mysql.Config, options notify.GateOptions) *follower {
	tb.Helper()
	db := openProcess(tb, config)
	f := &follower{db: db, gate: openGate(tb, db, "orders", options)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	tb.Cleanup(func() {
		cancel()
		mysqltest.Await(tb, ended, "the follower's end")
	})
	listening := make(chan struct{})
	go func() {
		defer close(ended)
		var seen notify.Head
		err := notify.ErrNoDatabase
		for err != nil && ctx.Err() == nil {
			seen, err = f.gate.Head(ctx)
		}
		close(listening)
		for ctx.Err() == nil {
			f.read(ctx)
			if seen, err = f.gate.Wait(ctx, seen, time.Hour); ctx.Err() == nil {
				assert.NoError(tb, err)
			}
		}
	}()
	mysqltest.Await(tb, listening, "a follower that listens")
	return f
}

// read reads the rows, however long that takes.
func (f *follower) read(ctx context.Context) {
	for ctx.Err() == nil {
		var last sql.NullInt64
		if f.db.Pool().GetContext(ctx, &last, "SELECT MAX(id) FROM orders") == nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.reads = append(f.reads, readUpTo{last.Int64, time.Now()})
			return
		}
		pause := time.NewTimer(tick)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

// has returns when the follower has read the row, and tells when that was.
func (f *follower) has(tb testing.TB, id int64) time.Time {
	tb.Helper()
	var when time.Time
	require.Eventually(tb, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		i := slices.IndexFunc(f.reads, func(r readUpTo) bool { return r.id >= id })
		if i >= 0 {
			when = f.reads[i].when
		}
		return i >= 0
	}, patience, time.Millisecond, "row %d does not come", id)
	return when
}

// send publishes a row, and returns its id.
func send(tb testing.TB, db *notify.DB, gate *notify.Gate) int64 {
	tb.Helper()
	result, err := db.Pool().ExecContext(tb.Context(), "INSERT INTO orders (payload) VALUES ('x')")
	require.NoError(tb, err)
	id, err := result.LastInsertId()
	require.NoError(tb, err)
	gate.Ring(uint64(id))
	return id
}

// Whichever session is killed, and however: all goes on by itself, no row is late, and
// then everything is as before.
func TestGateKilled(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		admin := s.Admin(t)
		makeTopic(t, openProcess(t, config))
		var followers []*follower
		var producers []*notify.Gate
		for range 2 {
			followers = append(followers, follow(t, account(t, s, config), watchful))
			producers = append(producers, openGate(t, openProcess(t, account(t, s, config)), "orders", watchful))
			require.NoError(t, producers[len(producers)-1].Join(t.Context()))
		}
		keeper := func() uint64 { return holder(t, admin, gateLock(config, "keeper")) }
		const ofKeeper = "USER = (SELECT USER FROM information_schema.PROCESSLIST WHERE ID = ?)"
		kinds := map[string]func() []uint64{
			"the keeper": func() []uint64 { return sessions(t, admin, config, "ID = ?", keeper()) },
			"the keeper's look": func() []uint64 {
				return sessions(t, admin, config, ofKeeper+" AND ID <> ? AND STATE <> ?", keeper(), keeper(), waiting)
			},
			"the wait on a bell": func() []uint64 {
				return sessions(t, admin, config, "STATE = ? AND INFO LIKE '%:bell%'", waiting)
			},
			"a bell": func() (ids []uint64) {
				for i := range 32 {
					id := holder(t, admin, gateLock(config, "bell"+strconv.FormatInt(int64(i), 36)))
					if id != 0 && id != keeper() {
						ids = append(ids, id)
					}
				}
				return ids
			},
			"a listener": func() []uint64 {
				return sessions(t, admin, config, "STATE = ? AND INFO NOT LIKE '%:bell%'", waiting)
			},
		}
		whole := func() {
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				claim := holder(t, admin, gateLock(config, "claim"))
				assert.NotZero(c, claim)
				assert.Equal(c, claim, keeper())
				for name, find := range kinds {
					want := 1
					if name == "a listener" {
						want = len(followers)
					}
					assert.Len(c, find(), want, name)
				}
			}, patience, tick)
		}
		for _, how := range []string{"QUERY", "CONNECTION"} {
			for name, find := range kinds {
				whole()
				killed := 0
				require.Eventually(t, func() bool { // between two waits there is none
					for _, victim := range find() {
						if killIfThere(t, admin, how, victim) { // a pool's may end just now
							killed++
						}
					}
					return killed > 0
				}, patience, tick, name)
				begun := time.Now()
				var late time.Duration
				for _, producer := range producers {
					id := send(t, producer.DB(), producer)
					for _, follower := range followers {
						late = max(late, follower.has(t, id).Sub(begun))
					}
				}
				t.Logf("KILL %s of %s: a row of each producer was read by all %v after", how, name, late)
			}
		}
		whole()
	})
}

// A keeper whose session was killed loses the gate. One that lives and whose lock another session
// sees with somebody else is behind a proxy, where no gate is possible.
func TestGateKilledIsNoProxy(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openProcess(t, tidy(t, s))
		session := openSession(t, db, never)
		lock := mustLock(t, session, lockName(db))
		require.ErrorIs(t, session.Concludes(t.Context(), lock), notify.ErrNoGate)
		kill(t, s.Admin(t), "CONNECTION", session.ID())
		mysqltest.Await(t, lock.Lost(), "the loss")
		require.NoError(t, session.Concludes(t.Context(), lock))
		// Were it the session of the looks, there would be another one.
		require.True(t, notify.Bears(session.Err()), session.Err())
		require.False(t, notify.Bears(errOurs))
	})
}
