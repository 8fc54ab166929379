package routines_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// sighting is the id of a row, and the time when it was committed or when a caller saw it.
type sighting struct {
	id uint64
	at time.Time
}

// tooLate is longer than a few of the callers' longest waits for a doubtful hint, and much shorter than their waits for a row.
const tooLate = 20 * time.Second

// Callers see every row soon after its commit, while writers are slow or roll back and the leader changes again and again.
func TestNoCallIsLate(t *testing.T) {
	const writers, callers = 3, 2
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		stop := lead(t, config, "orders")
		var mu sync.Mutex
		var committed []sighting
		rows := mysqltest.Many(15, 40, 2000)
		var writing, calling sync.WaitGroup
		for range writers {
			random := rand.New(rand.NewPCG(mysqltest.Random(t).Uint64(), 0)) //nolint:gosec // choices of a test
			writer := connect(t, db)
			writing.Go(func() {
				for range rows {
					wait(t.Context(), time.Duration(random.IntN(60))*time.Millisecond)
					tx, err := writer.BeginTx(t.Context(), nil)
					if !assert.NoError(t, err) {
						return
					}
					result, err := tx.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('x')")
					if !assert.NoError(t, err) {
						return
					}
					id, err := result.LastInsertId()
					assert.NoError(t, err)
					wait(t.Context(), time.Duration(random.IntN(40))*time.Millisecond)
					if random.IntN(4) == 0 {
						assert.NoError(t, tx.Rollback())
						continue
					}
					if !assert.NoError(t, tx.Commit()) {
						return
					}
					mu.Lock()
					committed = append(committed, sighting{uint64(id), time.Now()})
					mu.Unlock()
				}
			})
		}
		seen := make([][]sighting, callers)
		var last atomic.Uint64 // the callers end when they see it
		for i := range callers {
			caller := connect(t, open(t, config))
			calling.Go(func() {
				for head := uint64(0); last.Load() == 0 || head < last.Load(); {
					next, err := caller.head(t.Context(), "orders", head, 60)
					if !assert.NoError(t, err) {
						return
					}
					if next.Valid {
						head = next.V
						seen[i] = append(seen[i], sighting{head, time.Now()})
					}
				}
			})
		}
		ended := make(chan struct{})
		go func() { writing.Wait(); close(ended) }()
		for ending := false; !ending; {
			select {
			case <-ended:
				ending = true
			case <-time.After(300 * time.Millisecond):
				stop()
				stop = lead(t, config, "orders")
			}
		}
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('the last')")
		last.Store(mysqltest.Value[uint64](t, db.Pool(), "SELECT MAX(id) FROM orders"))
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('to wake the callers')")
		calling.Wait()
		for _, sightings := range seen {
			var worst time.Duration
			for _, row := range committed {
				late := time.Duration(-1)
				for _, s := range sightings {
					if s.id >= row.id {
						late = max(0, s.at.Sub(row.at))
						break
					}
				}
				require.GreaterOrEqual(t, late, time.Duration(0), "row %d is not seen", row.id)
				worst = max(worst, late)
			}
			t.Logf("%s: %d rows, the latest after %v", s.Name(), len(committed), worst)
			assert.Less(t, worst, tooLate)
		}
	})
}

// Callers soon see every row that is inserted alone at a random moment, even while the leader changes. The test shows a lost
// hint, because the next row is inserted only after the callers have seen this one, and their waits last a minute.
func TestNoLoneRowIsLate(t *testing.T) {
	const callers = 2
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		stop := lead(t, config, "orders")
		random := mysqltest.Random(t)
		rows := uint64(mysqltest.Many(15, 60, 5000)) //nolint:gosec // it is positive
		seen := make([]atomic.Uint64, callers)
		var calling sync.WaitGroup
		for i := range callers {
			caller := connect(t, open(t, config))
			calling.Go(func() {
				for head := uint64(0); head < rows; {
					next, err := caller.head(t.Context(), "orders", head, 60)
					if !assert.NoError(t, err) {
						return
					}
					if next.Valid {
						head = next.V
						seen[i].Store(head)
					}
				}
			})
		}
		var worst time.Duration
		for id := uint64(1); id <= rows; id++ {
			if random.IntN(6) == 0 {
				changed := make(chan struct{})
				old := stop
				go func() { defer close(changed); old() }()
				defer func() { <-changed }()
				stop = lead(t, config, "orders")
			}
			wait(t.Context(), time.Duration(random.IntN(20_000))*time.Microsecond)
			mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
			committed := time.Now()
			for i := range seen {
				for seen[i].Load() < id && time.Since(committed) < tooLate {
					wait(t.Context(), time.Millisecond)
				}
			}
			worst = max(worst, time.Since(committed))
		}
		t.Logf("%s: %d rows, the latest after %v", s.Name(), rows, worst)
		assert.Less(t, worst, tooLate)
		calling.Wait()
	})
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
