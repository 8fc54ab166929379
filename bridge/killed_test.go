//go:build unix

package bridge

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// childEnv makes the test binary run a bridge. It has the DSN, the URL and the group.
const childEnv = "MQNOTIFY_TEST_BRIDGE"

// bridgeMain runs a bridge until SIGTERM.
func bridgeMain(told string) error {
	parts := strings.Split(told, "\n")
	db, err := notify.Open(parts[0])
	if err != nil {
		return err
	}
	to, err := Parse(parts[1], "orders")
	if err != nil {
		return err
	}
	b, err := New(db, "orders", to, Options{
		Consumer: consumer.Options{Group: parts[2], From: "beginning", PageRows: 200},
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, nil)), SendTimeout: 5 * time.Second,
		Retry: func() backoff.BackOff { return notify.Exponential(50*time.Millisecond, time.Second) },
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return errors.Join(b.Run(ctx), db.Close())
}

// child is a process that is started again whenever it ends.
type child struct {
	env  string
	log  bytes.Buffer
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	process *os.Process
	starts  int
}

// startChild runs the test binary as the kind of process that env names.
func startChild(tb testing.TB, env string, told ...string) *child {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	c := &child{env: env + "=" + strings.Join(told, "\n"), stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		// A bridge that finds no broker ends at once, and a start costs more than all that it does then.
		for retry := notify.Exponential(50*time.Millisecond, time.Second); ctx.Err() == nil; pause(ctx, retry.NextBackOff()) {
			began := time.Now()
			if c.run(); time.Since(began) > time.Second {
				retry.Reset()
			}
		}
	}()
	tb.Cleanup(c.end)
	return c
}

func (c *child) run() {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), c.env, "GOCOVERDIR="+os.TempDir())
	cmd.Stderr = &c.log
	c.mu.Lock()
	if err := cmd.Start(); err != nil {
		panic(err) // impossible: this test runs from the same file
	}
	c.process = cmd.Process
	c.starts++
	c.mu.Unlock()
	_ = cmd.Wait() // it was usually killed
	c.mu.Lock()
	c.process = nil
	c.mu.Unlock()
}

// kill kills the process and reports whether there was one.
func (c *child) kill() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process != nil && c.process.Kill() == nil
}

// stuck ends the process, and returns the stacks of its goroutines and the log lines before them.
func (c *child) stuck() string {
	c.stop()
	c.mu.Lock()
	if c.process != nil {
		_ = c.process.Signal(syscall.SIGQUIT)
	}
	c.mu.Unlock()
	select {
	case <-c.done:
	case <-time.After(patience):
	}
	said := strings.Split(c.ended(), "\n")
	at := slices.Index(said, "SIGQUIT: quit")
	if at < 0 {
		at = len(said)
	}
	return strings.Join(said[max(0, at-40):min(len(said), at+400)], "\n")
}

func (c *child) end() {
	c.stop()
	for {
		c.kill()
		select {
		case <-c.done:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// ended ends the process and returns its log.
func (c *child) ended() string {
	c.end()
	return c.log.String()
}

// No row is lost, although the bridge, the broker and the database are killed (kill -9) at random while rows are inserted and
// sent. JetStream, Redis and the file have no duplicates. In the other destinations duplicates have the same id. Only mosquitto
// may lose a message that it confirmed just before it was killed. The long form has 100,000 rows.
func TestKilled(t *testing.T) {
	want, most := mysqltest.Many(1000, 1500, 100_000), mysqltest.Many(8, 8, 150)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		random := mysqltest.Random(t)
		server := s.Start(t)
		config := server.Database(t)
		db, err := sql.Open("mysql", config.FormatDSN())
		require.NoError(t, err)
		defer db.Close()
		require.NoError(t, schema.Init(t.Context(), db, "orders"))
		legs := legs(t)
		killable := slices.DeleteFunc(slices.Clone(legs), func(l *leg) bool { return l.kill == nil })
		for _, l := range legs {
			l.child = startChild(t, childEnv, config.FormatDSN(), l.url, l.name)
		}
		kills := map[string]int{}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var inserting sync.WaitGroup
		inserted, each := make(chan struct{}), make(chan struct{}) // closed when all rows are inserted, when each destination was killed
		inserting.Go(func() {
			defer close(inserted)
			for n, most, slow := 0, 50, time.Duration(0); ctx.Err() == nil; {
				if n >= want {
					select {
					case <-each:
						return
					default: // until each destination was killed, insert slowly
						most, slow = 1, 500*time.Millisecond
					}
				}
				count := 1 + random.IntN(most)
				rows := strings.TrimSuffix(strings.Repeat(`('{"traceparent":"x"}', 'row'),`, count), ",")
				if _, err := db.ExecContext(ctx, "INSERT INTO orders (headers, payload) VALUES "+rows); err == nil {
					n += count
				}
				pause(ctx, slow+time.Duration(random.IntN(10))*time.Millisecond)
			}
		})
		for rounds, ended := 0, false; rounds < 5 || !ended && rounds < most; rounds++ {
			pause(ctx, time.Duration(200+random.IntN(500))*time.Millisecond)
			victims := killable // all in the first rounds, then one at a time
			if rounds%3 == 2 {
				victims = legs
			}
			if rounds > 2 {
				at := random.IntN(len(victims))
				victims = victims[at : at+1]
			}
			switch rounds % 3 {
			case 0:
				server.Kill()
				server.Restart(t)
				kills["database"]++
			case 1:
				var dying sync.WaitGroup
				for _, l := range victims {
					dying.Go(l.kill)
					kills[l.name]++
				}
				dying.Wait()
			default:
				for _, l := range victims {
					l.child.kill()
					kills["bridge"]++
				}
			}
			if rounds == 2 {
				close(each)
			}
			select {
			case <-inserted:
				ended = true
			default:
			}
		}
		inserting.Wait()
		var head uint64
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT MAX(id) FROM orders").Scan(&head))
		for _, l := range legs {
			var settled, before sql.NullInt64
			for since := time.Now(); ; pause(t.Context(), 50*time.Millisecond) {
				err := db.QueryRowContext(t.Context(), "SELECT settled FROM mqnotify_offset WHERE group_name = ?", l.name).Scan(&settled)
				if err == nil && uint64(settled.Int64) >= head {
					break
				}
				if settled != before { // the time limit is for no progress at all
					since, before = time.Now(), settled
				}
				if time.Since(since) > 2*time.Minute {
					t.Fatalf("%s makes no progress: it stays at %d of %d (%v); its log:\n%s", l.name, settled.Int64, head, err, l.child.stuck())
				}
			}
			require.NotContains(t, l.child.ended(), brokertest.Password)
		}
		ids := map[string]int{}
		rows, err := db.QueryContext(t.Context(), "SELECT id FROM orders")
		require.NoError(t, err)
		defer rows.Close()
		for rows.Next() {
			var id uint64
			require.NoError(t, rows.Scan(&id))
			ids[MessageID(consumer.Message{Topic: "orders", ID: id})] = 0
		}
		require.NoError(t, rows.Err())
		require.GreaterOrEqual(t, len(ids), want)
		var letters int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM mqnotify_dead_letter").Scan(&letters))
		require.Zero(t, letters, "no row is a dead letter")
		report := fmt.Sprintf("%d rows, kills: %v;", len(ids), kills)
		for _, l := range legs {
			seen, twice := map[string]int{}, 0
			for _, m := range l.read() {
				_, there := ids[m.id]
				require.True(t, there, "%s has %s, which is not in the table", l.name, m.id)
				require.Equal(t, "row", m.payload)
				if seen[m.id]++; seen[m.id] > 1 {
					twice++
				}
			}
			lacks := len(ids) - len(seen)
			require.LessOrEqual(t, lacks, l.forgets*kills[l.name], "%s lacks rows", l.name)
			if l.once {
				require.Zero(t, twice, "%s has duplicates", l.name)
			}
			report += fmt.Sprintf(" %s: %d twice, %d forgotten, %d starts;", l.name, twice, lacks, l.child.starts)
		}
		t.Log(report)
	})
}

// pause waits for d or the end of the context.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
