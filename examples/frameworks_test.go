package examples_test

import (
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// frameworks are Laravel's database queue and Symfony Messenger's Doctrine transport, with the tables that they create.
var frameworks = []framework{
	{"laravel", "jobs", `id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, queue VARCHAR(255) NOT NULL, payload LONGTEXT NOT NULL,
		attempts TINYINT UNSIGNED NOT NULL, reserved_at INT UNSIGNED NULL, available_at INT UNSIGNED NOT NULL, created_at INT UNSIGNED NOT NULL,
		KEY queue (queue)`},
	{"symfony", "messenger_messages", `id BIGINT AUTO_INCREMENT NOT NULL PRIMARY KEY, body LONGTEXT NOT NULL, headers LONGTEXT NOT NULL,
		queue_name VARCHAR(190) NOT NULL, created_at DATETIME NOT NULL, available_at DATETIME NOT NULL, delivered_at DATETIME DEFAULT NULL,
		KEY queue_name (queue_name), KEY available_at (available_at), KEY delivered_at (delivered_at)`},
}

// TestFrameworks runs the real frameworks with their own workers, which sleep, and with workers that mqnotify wakes.
func TestFrameworks(t *testing.T) {
	mysqltest.EachCase(t, frameworks, func(t *testing.T, s *mysqltest.Server, f framework) {
		t.Run(f.name, func(t *testing.T) {
			php := mysqltest.Interpreter(t, "php")
			s = s.Start(t) // a server of its own, because the test counts its statements
			config := s.Database(t)
			db := openDB(t, config)
			mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE "+f.table+" ("+f.columns+")",
				"CREATE TABLE handled (n BIGINT AUTO_INCREMENT PRIMARY KEY, id INT NOT NULL, pushed_at DOUBLE NOT NULL, handled_at DOUBLE NOT NULL)")
			require.NoError(t, wake.InstallAll(t.Context(), db, mysqltest.Logger(t, slog.LevelWarn), f.table))
			account := s.User(t, config, "SELECT, INSERT, UPDATE, DELETE, EXECUTE ON `"+config.DBName+"`.*")
			j := &jobs{t: t, db: db, program: func(arguments ...string) *process {
				return prepare(t, account, php, append([]string{filepath.Join("testdata", f.name+".php")}, arguments...)...)
			}}
			j.latencies(func() { lead(t, config, f.table) })
			j.killed()
			_ = j.numbers.Close()
			gone(t, db)
		})
	})
}

type framework struct{ name, table, columns string }

type jobs struct {
	t       *testing.T
	db      *notify.DB
	program func(arguments ...string) *process
	numbers io.WriteCloser // the input of the program that pushes jobs
	pushed  int
}

// push pushes the given number of jobs.
func (j *jobs) push(many int) {
	j.t.Helper()
	if j.numbers == nil {
		p := j.program("push")
		in, err := p.StdinPipe()
		require.NoError(j.t, err)
		p.start()
		j.numbers = in
	}
	var numbers strings.Builder
	for range many {
		j.pushed++
		fmt.Fprintln(&numbers, j.pushed)
	}
	_, err := io.WriteString(j.numbers, numbers.String())
	require.NoError(j.t, err)
}

func (j *jobs) handled() int {
	j.t.Helper()
	return mysqltest.Value[int](j.t, j.db.Pool(), "SELECT COUNT(DISTINCT id) FROM handled")
}

func (j *jobs) allHandled() {
	j.t.Helper()
	mysqltest.Eventually(j.t, "all jobs are handled", func() bool { return j.handled() == j.pushed })
}

// median returns the median time from push to handling of the last jobs.
func (j *jobs) median(last int) time.Duration {
	j.t.Helper()
	all := mysqltest.Values[float64](j.t, j.db.Pool(), fmt.Sprintf("SELECT handled_at - pushed_at FROM handled ORDER BY n DESC LIMIT %d", last))
	slices.Sort(all)
	return time.Duration(all[len(all)/2] * float64(time.Second))
}

// latencies measures how soon jobs are handled by the framework's own worker, which sleeps, and by a worker that is woken. It
// also counts the statements of the latter while it waits.
func (j *jobs) latencies(lead func()) {
	t := j.t
	t.Helper()
	sleeping := j.program("work")
	sleeping.start()
	before := mysqltest.Many(2, 3, 20)
	j.push(1)
	j.allHandled() // the worker is running
	for range before {
		mysqltest.Window(t, 400*time.Millisecond) // the worker sleeps by then
		j.push(1)
		j.allHandled()
	}
	slow := j.median(before)
	sleeping.kill()
	lead()
	worker := j.program("wake")
	worker.start()
	waits := func() {
		mysqltest.Eventually(t, "the worker waits", func() bool {
			return mysqltest.Value[bool](t, j.db.Pool(), "SELECT COUNT(*) > 0 FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND USER <> SUBSTRING_INDEX(USER(), '@', 1) AND STATE = ?",
				mysqltest.WaitsForLock)
		})
	}
	after := mysqltest.Many(5, 10, 200)
	mysqltest.Eventually(t, "a worker that wakes is faster", func() bool {
		for range after {
			waits()
			j.push(1)
			j.allHandled()
		}
		fast := j.median(after)
		t.Logf("from the push to the handler: %v by the framework, %v by a worker that wakes", slow, fast)
		return fast < slow/2
	})
	waits()
	mysqltest.Eventually(t, "the worker sends no statement while it waits", func() bool {
		began := j.statements()
		mysqltest.Window(t, time.Second)
		return j.statements()-began <= 2 // this query, and one of the leader
	})

	// A delayed job is handled when it is due, although the worker would wait longer.
	p := j.program("later", "0")
	p.start()
	require.Zero(t, p.code(), p.said.String())
	j.pushed++
	j.allHandled()
	late := j.median(1)
	t.Logf("a job with a delay of 5 s: %v", late)
	require.Greater(t, late, 3900*time.Millisecond, "Laravel cuts the time to seconds")
	require.Less(t, late, 20*time.Second)
	require.False(t, worker.hasEnded())
	worker.kill()
}

// statements returns the number of statements that the server has received.
func (j *jobs) statements() (n int) {
	j.t.Helper()
	var name string
	require.NoError(j.t, j.db.Pool().QueryRowContext(j.t.Context(), "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n))
	return n
}

// killed kills one of two workers after the other while they handle jobs. All jobs are handled.
func (j *jobs) killed() {
	t := j.t
	t.Helper()
	random, many, kills := mysqltest.Random(t), mysqltest.Many(20, 30, 1000), mysqltest.Many(2, 3, 40)
	worker := func() *process {
		w := j.program("wake")
		w.Env = append(w.Env, "RETRY_AFTER=5")
		w.start()
		return w
	}
	workers := []*process{worker(), worker()}
	begin := j.handled()
	j.push(many)
	for kill := range kills {
		mysqltest.Eventually(t, "jobs are handled", func() bool { return j.handled() >= begin+many*kill/kills })
		i := random.IntN(len(workers))
		require.False(t, workers[i].hasEnded())
		workers[i].kill()
		workers[i] = worker()
	}
	j.allHandled()
	for _, w := range workers {
		w.kill()
	}
}
