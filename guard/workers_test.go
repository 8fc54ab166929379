package guard_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// broken is a common but wrong mutex: it first reads, and then takes.
type broken struct{ db *notify.DB }

func (b broken) Lock(ctx context.Context) (guard.Held, error) {
	for {
		var free bool
		err := b.db.Pool().GetContext(ctx, &free, "SELECT NOT EXISTS (SELECT 1 FROM broken)")
		if err == nil && free {
			_, err = b.db.Pool().ExecContext(ctx, "INSERT INTO broken SELECT SLEEP(0.002)")
			return brokenHeld{b}, err
		}
		if err == nil {
			_, err = b.db.Pool().ExecContext(ctx, "DO SLEEP(0.001)")
		}
		if err != nil {
			return nil, err
		}
	}
}

type brokenHeld struct{ broken }

func (brokenHeld) Token() uint64 { return 0 }
func (brokenHeld) Err() error    { return nil }
func (brokenHeld) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(ctx)
}

func (b brokenHeld) Release(ctx context.Context) error {
	_, err := b.db.Pool().ExecContext(ctx, "DELETE FROM broken")
	return err
}

// workerMain takes the mutex repeatedly, and does work that a second holder at the
// same time would spoil. On the order "die" it kills itself during the work.
func workerMain(ctx context.Context, db *notify.DB, t childInput) error {
	var mutex interface {
		Lock(ctx context.Context) (guard.Held, error)
	} = broken{db: db}
	if t.Kind == "lease" {
		mutexes["lease"] = leaseFor(t.TTL)
	}
	if open := mutexes[t.Kind]; open != nil {
		var err error
		if mutex, err = open(db, t.Name); err != nil {
			return err
		}
	}
	orders := listen()
	for {
		held, err := mutex.Lock(ctx)
		if err != nil {
			say("not got: %v", err)
			continue
		}
		err = work(ctx, db, held, orders)
		if released := held.Release(ctx); err == nil {
			err = released
		}
		say("worked: %v", err)
		<-time.After(10 * time.Millisecond) // it is another one's turn
	}
}

// listen returns the orders to a process, which ends with the test's process.
func listen() <-chan string {
	orders := make(chan string, 1)
	go func() {
		_ = eachOrder(func(order string) error { orders <- order; return nil })
		os.Exit(1)
	}()
	return orders
}

var errRejected = errors.New("rejected")

// work counts up in two steps. A second holder at the same time would count from the
// same number. The resource refuses a smaller token than it has seen.
func work(ctx context.Context, db *notify.DB, held guard.Held, orders <-chan string) (err error) {
	ctx, cancel := held.Context(ctx)
	defer cancel()
	conn, err := db.Pool().Connx(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if held.Token() == 0 {
		var id uint64
		if err := conn.GetContext(ctx, &id, "SELECT CONNECTION_ID()"); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				waitForEnd(ctx, db, conn, id)
			}
		}()
	}
	change := func(ctx context.Context, n int) error {
		// One statement, because an interrupted transaction would make other holders wait. A trigger
		// records what was written.
		result, err := conn.ExecContext(ctx, "UPDATE resource SET changes = changes + 1, token = ?, process = ?, written = ?,"+
			" n = GREATEST(n, written) WHERE token <= ?", held.Token(), os.Getpid(), n, held.Token())
		if err != nil {
			return err
		}
		if changed, err := result.RowsAffected(); changed > 0 || err != nil {
			return err
		}
		return errRejected
	}
	if held.Token() == 0 {
		// A statement of a dead holder may still run; without a token, wait for it.
		if _, err := conn.ExecContext(ctx, "DO SLEEP(0.1)"); err != nil {
			return err
		}
	}
	if err := change(ctx, 0); err != nil { // shows the token before it reads
		return err
	}
	var n int
	if err := conn.GetContext(ctx, &n, "SELECT n FROM resource"); err != nil {
		return err
	}
	select {
	case order := <-orders:
		say("in the middle")
		if order != "stop" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		ctx = context.WithoutCancel(ctx)
		continued := make(chan os.Signal, 1)
		signal.Notify(continued, syscall.SIGCONT)
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		<-continued // the stop takes effect in here, on a busy machine later than at once
	default:
	}
	if _, err := conn.ExecContext(ctx, "DO SLEEP(0.001)"); err != nil {
		return err
	}
	return change(ctx, n+1)
}

// waitForEnd returns when a session whose connection was lost has ended, and with it its last
// statement: without a token, nothing else separates that from the next holder's work.
func waitForEnd(ctx context.Context, db *notify.DB, conn *sqlx.Conn, id uint64) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	for ctx.Err() == nil {
		var lives bool
		err := db.Pool().GetContext(ctx, &lives, "SELECT EXISTS (SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = ?)", id)
		if err == nil && !lives {
			return
		}
		<-time.After(tick)
	}
}

// workers are processes that share a mutex.
type workers struct {
	t      *testing.T
	db     *notify.DB
	all    []*peer
	inputs []childInput
	errs   map[string]int
}

func startWorkers(t *testing.T, s *mysqltest.Server, input childInput, dsn func(n int, direct string) string, count int) *workers {
	t.Helper()
	db, config := openState(t, s)
	mysqltest.Exec(t, db.Pool(), "CREATE TABLE resource (id INT PRIMARY KEY, owner VARCHAR(20) UNIQUE, n INT NOT NULL DEFAULT 0, token BIGINT UNSIGNED NOT NULL DEFAULT 0,"+
		" process INT NOT NULL DEFAULT 0, written INT NOT NULL DEFAULT 0, changes INT NOT NULL DEFAULT 0)")
	mysqltest.Exec(t, db.Pool(), "INSERT INTO resource (id, owner) VALUES (1, 'one')")
	mysqltest.Exec(t, db.Pool(), "CREATE TABLE works (id INT AUTO_INCREMENT PRIMARY KEY, n INT NOT NULL, token BIGINT UNSIGNED NOT NULL, process INT NOT NULL)")
	mysqltest.Exec(t, db.Pool(), "CREATE TRIGGER noted AFTER UPDATE ON resource FOR EACH ROW INSERT INTO works (n, token, process)"+
		" SELECT NEW.written, NEW.token, NEW.process FROM DUAL WHERE NEW.written > 0")
	mysqltest.Exec(t, db.Pool(), "CREATE TABLE broken (x INT)")
	w := &workers{t: t, db: db, errs: map[string]int{}}
	for n := range count {
		input.DSN = dsn(n, config.FormatDSN())
		w.inputs = append(w.inputs, input)
		w.all = append(w.all, startPeer(t, input))
	}
	return w
}

func same(_ int, direct string) string { return direct }

// halfThrough makes half of the workers connect through the proxy.
func halfThrough(s *mysqltest.Server, proxy *mysqltest.Proxy) func(n int, direct string) string {
	return func(n int, direct string) string {
		if n%2 == 0 {
			return direct
		}
		return strings.Replace(direct, s.Addr(), proxy.Addr(), 1)
	}
}

// replace kills a worker, and starts another one like it.
func (w *workers) replace(n int) {
	w.all[n].kill()
	w.read(w.all[n], "nothing more")
	w.all[n] = startPeer(w.t, w.inputs[n])
}

func (w *workers) done() int { return mysqltest.Value[int](w.t, w.db.Pool(), "SELECT n FROM resource") }

// goOn waits until a number of further steps was done.
func (w *workers) goOn(n int) {
	w.t.Helper()
	n += w.done()
	require.Eventually(w.t, func() bool { return w.done() >= n }, patience, tick, "nobody works any more")
}

// cut repeatedly cuts the connections that go through the proxy.
func (w *workers) cut(proxy *mysqltest.Proxy, each int) {
	for range cuts {
		w.goOn(each / 2)
		proxy.Down()
		proxy.Up()
	}
}

// cuts is how often connections are cut in a round.
const cuts = 3

// twice counts the values that were written several times, which only two holders of a mutex do.
func (w *workers) twice() int {
	return mysqltest.Value[int](w.t, w.db.Pool(), "SELECT COUNT(*) FROM (SELECT n FROM works GROUP BY n HAVING COUNT(*) > 1) twice")
}

// hear reads lines of a process until one begins with the text, or the process ends.
func (w *workers) read(p *peer, prefix string) string {
	for {
		line, ok := p.read(w.t)
		if _, err, has := strings.Cut(line, ": "); has {
			w.errs[err]++
		}
		if !ok || strings.HasPrefix(line, prefix) {
			return line
		}
	}
}

func (w *workers) stop() {
	for _, p := range w.all {
		p.kill()
		w.read(p, "nothing more")
	}
}

// A mutex never has two holders: processes that share one count up in two steps, are
// killed with kill -9, and half of them lose their connections. A mutex
// that does not expire is broken by a process that knows that its holder is dead.
func TestMutexProcesses(t *testing.T) {
	rounds, each := mysqltest.Many(1, 2, 30), mysqltest.Many(4, 6, 40)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, kind := range mysqltest.Some(t, slices.Sorted(maps.Keys(mutexes))) {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				random := mysqltest.Random(t)
				proxy := s.Proxy(t)
				w := startWorkers(t, s, childInput{Role: "worker", Kind: kind, Name: "the resource", TTL: time.Second}, halfThrough(s, proxy), mysqltest.Many(3, 4, 4))
				for range rounds {
					w.cut(proxy, each)
					victim := random.IntN(len(w.all))
					dies := w.all[victim]
					if kind == "row" || kind == "flag" {
						dies.send("die") // while it holds the mutex
						mysqltest.Await(t, dies.ended, "its death")
						m, err := mutexes[kind](w.db, "the resource")
						require.NoError(t, err)
						broke, err := m.Break(t.Context())
						require.NoError(t, err)
						require.True(t, broke, "it was taken still")
					}
					w.replace(victim)
				}
				w.goOn(each)
				w.stop()
				require.Zero(t, w.twice(), "two holders at once")
				if kind == "lease" || kind == "flag" {
					require.Zero(t, mysqltest.Value[int](t, w.db.Pool(), "SELECT COUNT(*) FROM works a JOIN works b ON a.n < b.n AND a.token > b.token"))
				}
				t.Logf("%s: %d times held by %d processes, %d of them killed with kill -9, connections of half of them cut %d times, nobody at the same time: %v",
					kind, w.done(), len(w.all)+rounds, rounds, cuts*rounds, w.errs)
			})
		}
	})
}

// The same test detects a broken mutex.
func TestMutexProcessesDetectTwoHolders(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		w := startWorkers(t, s, childInput{Role: "worker", Kind: "broken"}, same, 4)
		require.Eventually(t, func() bool { return w.twice() > 0 }, patience, tick)
		w.stop()
	})
}

// Holders of a lease that are stopped until after its end, or cut off from the server, come back
// and write: the resource rejects them by their tokens, and no holder's work is lost.
func TestLeaseFaults(t *testing.T) {
	rounds := mysqltest.Many(2, 4, 60)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		random := mysqltest.Random(t)
		proxy := s.Proxy(t)
		w := startWorkers(t, s, childInput{Role: "worker", Kind: "lease", Name: "the resource", TTL: 300 * time.Millisecond}, halfThrough(s, proxy), mysqltest.Many(3, 4, 4))
		for round := range rounds {
			w.goOn(3)
			switch round % 4 {
			case 0, 2:
				stopped := w.all[random.IntN(len(w.all))]
				stopped.send("stop")
				w.read(stopped, "in the middle")
				w.goOn(5) // the others, when the lease has expired
				require.NoError(t, stopped.command.Process.Signal(syscall.SIGCONT))
				require.Contains(t, w.read(stopped, "worked"), errRejected.Error(), "it wrote with an old token")
			case 1:
				proxy.Freeze()
				w.goOn(5)
				proxy.Thaw()
			case 3:
				proxy.Down()
				w.goOn(5)
				proxy.Up()
			}
		}
		w.goOn(3)
		w.stop()
		require.Zero(t, w.twice(), "two holders at once")
		require.Zero(t, mysqltest.Value[int](t, w.db.Pool(), "SELECT COUNT(*) FROM works a JOIN works b ON a.n < b.n AND a.token > b.token"))
		t.Logf("held %d times; %d writes with an old token were rejected", w.done(), w.errs[errRejected.Error()])
	})
}
