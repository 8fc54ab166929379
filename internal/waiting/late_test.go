package waiting_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// sight is a head and the time when a process saw it.
type sight struct {
	id uint64
	at time.Time
}

// watcher is a process that records when it sees which head.
type watcher struct {
	listener *waiting.Listener
	tell     func(id uint64) // is told as well, if not nil
	mu       sync.Mutex
	seen     []sight
}

func (w *watcher) watch(ctx context.Context) error {
	head, err := w.listener.Head(ctx)
	for err == nil {
		w.note(head.V)
		head, err = w.listener.Wait(ctx, head, time.Hour)
	}
	if ctx.Err() == nil {
		return err
	}
	return nil
}

func (w *watcher) note(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, sight{id, time.Now()})
	if w.tell != nil {
		w.tell(id)
	}
}

// at returns when the process first saw the id or a larger one.
func (w *watcher) at(id uint64) (at time.Time, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.seen) - 1; i >= 0 && w.seen[i].id >= id; i-- {
		at, ok = w.seen[i].at, true
	}
	return at, ok
}

// load is the statements of writers on a table, and the rows that they have committed.
type load struct {
	pause, before time.Duration // between two transactions, and before a COMMIT, at most
	delayed       int           // one of so many transactions pauses before its COMMIT
	rollbacks     int           // in a hundred

	mu      sync.Mutex
	commits []sight
}

// statements insert a few rows each. {t} is the table.
var statements = []string{
	"INSERT INTO {t} (payload) VALUES ('x')",
	"INSERT INTO {t} (payload) VALUES ('x'), ('y'), ('z')",
	"INSERT INTO {t} (payload) SELECT 'x' UNION ALL SELECT 'y'",
	"REPLACE INTO {t} (payload) VALUES ('x')",
	"LOAD DATA LOCAL INFILE 'Reader::rows' INTO TABLE {t} (payload)",
}

func init() {
	mysql.RegisterReaderHandler("rows", func() io.Reader { return strings.NewReader("x\ny\nz\n") })
}

// write commits transactions until ctx ends.
func (l *load) write(ctx context.Context, db *sql.DB, table string, random *rand.Rand) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	within := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d) + 1)) }
	exec := func(query string) error { _, err := conn.ExecContext(context.WithoutCancel(ctx), query); return err }
	for n := 0; ; n++ {
		if !pause(ctx, within(l.pause)) {
			return nil
		}
		begin, commit, rollback := "BEGIN", "COMMIT", "ROLLBACK"
		if random.IntN(10) == 0 {
			xid := fmt.Sprintf("'%s %d'", table, random.Uint64())
			begin = "XA BEGIN " + xid
			commit, rollback = "XA COMMIT "+xid, "XA ROLLBACK "+xid
		}
		if err := exec(begin); err != nil {
			return err
		}
		var id uint64
		for range 1 + random.IntN(2) {
			statement := strings.ReplaceAll(statements[random.IntN(len(statements))], "{t}", table)
			if err := exec(statement); err != nil {
				return err
			}
		}
		if err := conn.QueryRowContext(context.WithoutCancel(ctx), "SELECT LAST_INSERT_ID()").Scan(&id); err != nil {
			return err
		}
		if l.before > 0 && random.IntN(l.delayed) == 0 {
			pause(context.WithoutCancel(ctx), within(l.before))
		}
		if xid, isXA := strings.CutPrefix(commit, "XA COMMIT "); isXA {
			for _, step := range []string{"XA END ", "XA PREPARE "} {
				if err := exec(step + xid); err != nil {
					return err
				}
			}
		}
		if random.IntN(100) < l.rollbacks {
			if err := exec(rollback); err != nil {
				return err
			}
			continue
		}
		if err := exec(commit); err != nil {
			return err
		}
		l.mu.Lock()
		l.commits = append(l.commits, sight{id, time.Now()})
		l.mu.Unlock()
	}
}

// pause waits, and reports whether ctx still lives.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// delays returns, for every process, how long after its commit a row above the head was seen. It fails for a row that was
// never seen.
func (l *load) delays(t *testing.T, watchers []*watcher) (delays []time.Duration) {
	t.Helper()
	for _, c := range l.commits {
		for i, w := range watchers {
			at, ok := w.at(c.id)
			require.True(t, ok, "process %d has not seen id %d", i, c.id)
			if at.After(c.at) {
				delays = append(delays, at.Sub(c.at))
			} else {
				delays = append(delays, 0)
			}
		}
	}
	slices.Sort(delays)
	return delays
}

// The invariant: a process sees a row with the largest id soon after its commit, whatever the writers do. If a hint
// were lost, only the timeout of the leader's wait would find the row, after more than a minute.
func TestNothingIsLate(t *testing.T) {
	for name, c := range map[string]struct {
		writers       int
		pause, before time.Duration
		delayed       int
		rollbacks     int
		held          time.Duration // before one in ten of a leader's statements is sent
	}{
		"many writers": {8, 30 * time.Millisecond, mysqltest.Size(time.Second, 3*time.Second, 3*time.Second), mysqltest.Size(3, 3, 20), 5, 0},
		"pauses":       {4, mysqltest.Size(1500*time.Millisecond, 1500*time.Millisecond, 5*time.Second), 300 * time.Millisecond, 3, 38, 0},
		"held up":      {4, 1500 * time.Millisecond, 100 * time.Millisecond, 3, 20, 60 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
				config := s.Database(t)
				db := open(t, config)
				makeTopic(t, db, config, "orders", true)
				if !s.IsMariaDB() { // where it is on
					mysqltest.Exec(t, s.Admin(t), "SET GLOBAL local_infile = ON")
				}
				// REPLACE needs DELETE.
				writer := open(t, s.User(t, config, "INSERT, DELETE ON `"+config.DBName+"`.orders"))
				random := mysqltest.Random(t)
				watchers, stop := watch(t, config, 3, c.held, random)
				l := &load{pause: c.pause, before: c.before, delayed: c.delayed, rollbacks: c.rollbacks}
				writing, enough := context.WithTimeout(t.Context(), mysqltest.Many(4*time.Second, 6*time.Second, 10*time.Minute))
				defer enough()
				var writers sync.WaitGroup
				for range c.writers {
					writers.Go(func() {
						if err := l.write(writing, writer, "orders", random); err != nil {
							t.Errorf("write: %v", err)
						}
					})
				}
				writers.Wait()
				last := mysqltest.Value[uint64](t, db, "SELECT MAX(id) FROM orders")
				for i, w := range watchers {
					mysqltest.Eventually(t, fmt.Sprintf("process %d sees the last row", i), func() bool { _, ok := w.at(last); return ok })
				}
				stop()
				delays := l.delays(t, watchers)
				at := func(p float64) time.Duration { return delays[int(float64(len(delays)-1)*p)] }
				t.Logf("%d commits: seen after %v at the median, %v at p99, %v at p99.9, %v at most",
					len(l.commits), at(0.5), at(0.99), at(0.999), at(1))
				require.Less(t, at(1), 30*time.Second, "a row was found by the timeout of a wait")
			})
		})
	}
}

// watch starts processes that listen to the table.
func watch(t *testing.T, config *mysql.Config, processes int, held time.Duration, random *rand.Rand) (watchers []*watcher, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range processes {
		w := &watcher{listener: listen(t, config, "orders")}
		watchers = append(watchers, w)
		if held > 0 {
			w.listener.BeforeSending(func() {
				if random.IntN(10) == 0 {
					pause(ctx, held)
				}
			})
		}
		all.Go(func() {
			if err := w.watch(ctx); err != nil {
				t.Errorf("watch: %v", err)
			}
		})
		sleeps(t, w.listener)
	}
	stop = func() {
		cancel()
		all.Wait()
	}
	t.Cleanup(stop)
	return watchers, stop
}
