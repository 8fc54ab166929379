package queue

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

const processEnv = "MQNOTIFY_QUEUE_PROCESS"

// processTold is the input of a process of these tests.
type processTold struct {
	Role       string // worker, enqueuer, scheduler, delayer, acker, finisher
	Name       string
	DSN        string
	Record     string // a DSN without cuts, for the handler's records
	Claim      string
	Visibility time.Duration
	Takes      time.Duration // how long a task named "long" takes; 0: each takes up to 30 ms, and one in ten fails
	Quick      bool          // a task takes no time, and one in fifty fails
	Handlers   int           // 0 means 3, with batches of 5
	Tasks      int
	Batch      int // 0 means 5, or as many as Handlers
	Lapses     int
	Ordered    bool
	Now        time.Time     // by the test's clock
	Off        time.Duration // how far from it this process's is
}

// process is a process that a test has started, and may kill.
type process struct {
	told    processTold
	command *exec.Cmd
	ended   chan struct{}
}

// startProcess starts a process, which ends with the test's process.
func startProcess(t *testing.T, told processTold) *process {
	t.Helper()
	return startProgram(t, os.Args[0], told)
}

func startProgram(t *testing.T, program string, told processTold) *process {
	t.Helper()
	told.Now = time.Now()
	text, err := json.Marshal(told)
	require.NoError(t, err)
	p := &process{told: told, command: exec.Command(program), ended: make(chan struct{})}
	p.command.Env = append(os.Environ(), processEnv+"="+string(text))
	var said bytes.Buffer // read when the process has ended
	p.command.Stderr = &said
	alive, err := p.command.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.command.Start())
	go func() {
		defer close(p.ended)
		_ = p.command.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		_ = alive.Close()
		if t.Failed() {
			t.Logf("%s %s: %s", told.Role, told.Name, said.String())
		}
	})
	return p
}

// kill kills with kill -9.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// processMain is the main function of such a process.
func processMain(text string) error {
	go func() { // the test's process holds the other end
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var told processTold
	if err := json.Unmarshal([]byte(text), &told); err != nil {
		return err
	}
	if off := time.Since(told.Now) - told.Off; off.Abs() > time.Minute {
		return fmt.Errorf("this process's clock is %v from what it should be", off)
	}
	db, err := notify.Open(told.DSN)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	q, err := New(db, "mail", Options{Logger: log})
	if err != nil {
		return err
	}
	switch told.Role {
	case "enqueuer":
		return enqueueMain(q, told)
	case "scheduler": // a worker that does nothing but enter recurring tasks, as fast as it can
		return scheduleMain(q)
	case "delayer":
		return delayMain(q)
	}
	record, err := notify.Open(told.Record)
	if err != nil {
		return err
	}
	if told.Role == "acker" {
		return ackerMain(q, record, told)
	}
	w, err := newWorker(q, WorkerOptions{
		Claim: told.Claim, Concurrency: cmp.Or(told.Handlers, 3), Batch: cmp.Or(told.Batch, told.Handlers, 5), Lapses: told.Lapses, Visibility: told.Visibility, Owner: told.Name,
		Backoff: func(int) time.Duration { return 10 * time.Millisecond },
	})
	if err != nil {
		return err
	}
	random := mysqltest.RandomOf(told.Name)
	return w.run(context.Background(), func(ctx context.Context, task Task) error {
		if told.Role == "finisher" {
			return finish(ctx, db, record, task)
		}
		// Two runs of one attempt violate the key.
		_, err := record.Pool().ExecContext(context.WithoutCancel(ctx), "INSERT INTO runs (task, attempt, worker, began) VALUES (?, ?, ?, UTC_TIMESTAMP(6))",
			task.ID, task.Attempt, told.Name)
		if err != nil {
			return err
		}
		if string(task.Payload) == "poison" {
			os.Exit(3)
		}
		begun, odds := time.Now(), 50
		if !told.Quick && (told.Takes == 0 || string(task.Payload) == "long") {
			odds = 10
			select {
			case <-time.After(cmp.Or(told.Takes, time.Duration(random.Int64N(int64(30*time.Millisecond))))):
			case <-ctx.Done():
			}
		}
		// Whatever happened to ctx, the run lasts until now, and not until a loaded server has stored its end.
		_, err = record.Pool().ExecContext(context.WithoutCancel(ctx),
			"UPDATE runs SET ended = began + INTERVAL ? MICROSECOND, lost = ? WHERE task = ? AND attempt = ?",
			time.Since(begun).Microseconds(), ctx.Err() != nil, task.ID, task.Attempt)
		if err == nil && told.Takes == 0 && random.IntN(odds) == 0 {
			err = fmt.Errorf("one in %d", odds)
		}
		return err
	})
}

func enqueueMain(q *Queue, told processTold) error {
	for n := 0; n < told.Tasks; n++ {
		e := Entry{Payload: []byte(told.Name), Unique: fmt.Sprintf("%s %d", told.Name, n), Retries: 1000}
		if !told.Ordered {
			e.Priority, e.Delay = n%3, time.Duration(n%5)*20*time.Millisecond
		}
		if _, err := q.Enqueue(context.Background(), e); err != nil { // the key makes it safe to enter it again
			n--
			<-time.After(20 * time.Millisecond)
		}
	}
	return q.Close()
}

// makeRuns creates the table in which workers record every run of a task.
func makeRuns(t *testing.T, db *notify.DB) {
	t.Helper()
	mysqltest.Exec(t, db.Pool(), "CREATE TABLE runs (task BIGINT, attempt INT, worker VARCHAR(64), began DATETIME(6), ended DATETIME(6) NULL,"+
		" lost BOOLEAN NOT NULL DEFAULT FALSE, PRIMARY KEY (task, attempt)) ENGINE=InnoDB")
	mysqltest.Exec(t, db.Pool(), "CREATE TABLE killed (worker VARCHAR(64) PRIMARY KEY, at DATETIME(6) NOT NULL) ENGINE=InnoDB")
}

// killWorker kills a worker. It stores the time first, because a statement after the kill may take long on a
// loaded machine.
func killWorker(t *testing.T, db *notify.DB, p *process) {
	t.Helper()
	mysqltest.Exec(t, db.Pool(), "INSERT INTO killed VALUES (?, UTC_TIMESTAMP(6))", p.told.Name)
	p.kill()
}

// overlaps returns the runs that began before the end of a run that must precede them.
// All runs have ended by then, also statements that a killed worker had sent and that the
// server finished later.
func overlaps(t *testing.T, db *notify.DB, before string) string {
	t.Helper()
	mysqltest.Exec(t, db.Pool(), "UPDATE runs r JOIN killed k ON k.worker = r.worker SET r.ended = k.at WHERE r.ended IS NULL OR r.ended > k.at")
	return mysqltest.Value[string](t, db.Pool(), "SELECT COALESCE(GROUP_CONCAT(CONCAT_WS(' ', a.task, a.attempt, a.worker, a.began, a.ended, a.lost,"+
		" 'and', b.task, b.attempt, b.worker, b.began) SEPARATOR '; '), '')"+
		" FROM runs a JOIN runs b ON "+before+" WHERE b.began < a.ended")
}

// Processes enter tasks, and others race to do them. Three of those are
// killed, and the connections of others are cut: no task is lost,
// each is done, and none is handled twice at once.
func TestProcesses(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		r := race{
			workers: mysqltest.Many(4, 8, 8), enqueuers: 2,
			tasks: mysqltest.Many(40, 100, 10_000), kills: mysqltest.Many(2, 3, 60),
		}
		db, all := r.run(t, s, mode)
		requireDone(t, db, all)
	})
}

// The same with tasks that take no time, so that the workers reserve the next ones.
func TestReservingProcesses(t *testing.T) {
	mysqltest.NotShort(t, "TestWorkersReserve")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		r := race{workers: mysqltest.Many(3, 4, 4), tasks: mysqltest.Many(300, 800, 60_000), kills: mysqltest.Many(1, 2, 60), quick: true}
		db, all := r.run(t, s, claimSkipLocked)
		requireDone(t, db, all)
	})
}

// requireDone checks the number of tasks, that each was run for its attempt, and that no two workers had one at once.
func requireDone(t *testing.T, db *notify.DB, all int) {
	t.Helper()
	assert.Equal(t, all, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task"), "entered once")
	assert.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task t WHERE NOT EXISTS"+
		" (SELECT 1 FROM runs r WHERE r.task = t.id AND r.attempt = t.attempts)"), "done and never run")
	assert.Empty(t, overlaps(t, db, "a.task = b.task AND a.attempt < b.attempt"), "handled twice at once")
}

// Processes that share an ordered queue, some of which are killed, while the
// connections of others are cut, have one task at a time, and none before all that were
// entered before it are done.
func TestOrderedProcesses(t *testing.T) {
	mysqltest.NotShort(t, "TestOrderedHeadDies")
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		r := race{
			workers: mysqltest.Many(3, 4, 4), enqueuers: 2, ordered: true,
			tasks: mysqltest.Many(15, 40, 1000), kills: mysqltest.Many(1, 3, 30),
		}
		db, all := r.run(t, s, mode)
		assert.Equal(t, all, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(DISTINCT task) FROM runs"))
		assert.Empty(t, overlaps(t, db, "(a.task, a.attempt) < (b.task, b.attempt)"), "before the end of the one before")
	})
}

// race is processes that enter tasks and others that do them.
type race struct {
	workers, enqueuers, tasks, kills int // tasks are each enqueuer's; without any they are there before
	ordered, quick                   bool
}

// run runs the race until all tasks are done and no worker runs any more. It returns the number of tasks.
func (r race) run(t *testing.T, s *mysqltest.Server, mode string) (db *notify.DB, all int) {
	t.Helper()
	db, config := database(t, s, Options{Ordered: r.ordered})
	makeRuns(t, db)
	proxy := s.Proxy(t)
	started, direct := 0, config.FormatDSN()
	start := func(role string, config *mysql.Config) *process {
		started++
		handlers := 0
		if r.quick {
			handlers = 1 + started%4
		}
		return startProcess(t, processTold{
			Quick: r.quick, Handlers: handlers, Role: role, Name: fmt.Sprintf("%s%d", role, started), DSN: config.FormatDSN(), Record: direct, Claim: mode,
			Visibility: mysqltest.Size(30*time.Second, 5*time.Second, 5*time.Second), Tasks: r.tasks, Ordered: r.ordered,
		})
	}
	all = r.tasks * r.enqueuers
	if r.enqueuers == 0 {
		all = r.tasks
		mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_task (queue, payload) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"+
			" SELECT 'mail', 'x' FROM n a, n b LIMIT ?", all)
	}
	random := mysqltest.Random(t)
	q := newQueue(t, db, Options{})
	configs := []*mysql.Config{config, proxy.Config(config)}
	alive := make([]*process, r.workers)
	for i := range alive {
		alive[i] = start("worker", configs[i%2])
	}
	for range r.enqueuers {
		start("enqueuer", config)
	}
	reserved := 0
	done := func() int {
		reserved = max(reserved, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task WHERE state = 'ready' AND owner LIKE '~%'"))
		return inState(t, db, stateDone)
	}
	for kill := range r.kills {
		enough := all * (kill + 1) / (r.kills + 2)
		require.Eventually(t, func() bool { return done() >= enough }, 10*patience, 5*tick)
		i := random.IntN(r.workers)
		killWorker(t, db, alive[i])
		if testing.Short() { // its claims lapse at once
			mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE state = 'in progress' AND owner LIKE ?", alive[i].told.Name+"-%")
			q.Notify(t.Context())
		}
		alive[i] = start("worker", configs[i%2])
		proxy.Down()
		proxy.Up()
	}
	require.Eventually(t, func() bool { return done() == all }, 10*patience, 5*tick, "all are done")
	for _, p := range alive { // their last runs have ended, or have died with them
		p.kill()
	}
	mysqltest.Exec(t, db.Pool(), "UPDATE runs SET ended = UTC_TIMESTAMP(6) WHERE ended IS NULL")
	t.Logf("%d tasks, %d runs, %d of them cut off; %d workers of %d killed; %d reserved at once", all, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM runs"),
		mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM runs WHERE lost"), r.kills, r.workers+r.kills, reserved)
	return db, all
}

func scheduleMain(q *Queue) error {
	w, err := newWorker(q, WorkerOptions{Batch: 1})
	if err != nil {
		return err
	}
	return w.run(context.Background(), func(ctx context.Context, task Task) error {
		_, err := q.db.Pool().ExecContext(ctx, "INSERT INTO entered (task) VALUES (?)", task.ID)
		return err
	})
}

// A due time makes one task, however many processes schedule, some of which are killed, while the
// connections of others are cut.
func TestScheduleProcesses(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE entered (task BIGINT PRIMARY KEY) ENGINE=InnoDB")
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE moves (due DATETIME(6)) ENGINE=InnoDB")
		mysqltest.Exec(t, db.Pool(), "CREATE TRIGGER moved AFTER UPDATE ON mqnotify_schedule FOR EACH ROW"+
			" INSERT INTO moves SELECT OLD.next_at FROM (SELECT 1) one WHERE NEW.next_at <> OLD.next_at")
		q := newQueue(t, db, Options{})
		proxy := s.Proxy(t)
		configs := []*mysql.Config{config, proxy.Config(config)}
		require.NoError(t, q.Schedule(t.Context(), Recurring{Name: "each second", Cron: "@every 1s", Entry: Entry{Payload: []byte("tick")}}))
		schedulers := make([]*process, mysqltest.Many(4, 6, 8))
		for i := range schedulers {
			schedulers[i] = startProcess(t, processTold{Role: "scheduler", DSN: configs[i%2].FormatDSN()})
		}
		for i := range mysqltest.Many(2, 3, 8) {
			eventually(t, func() bool { return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task") > i }, "no task is entered")
			schedulers[i].kill()
			proxy.Down()
			proxy.Up()
		}
		// Read everything in one snapshot, because the schedulers continue.
		rows := mysqltest.Value[string](t, db.Pool(), "SELECT CONCAT_WS(' ', (SELECT COUNT(*) FROM mqnotify_task), (SELECT COUNT(*) FROM moves),"+
			" (SELECT COUNT(DISTINCT due) FROM moves))")
		var tasks, moves, due int
		_, err := fmt.Sscan(rows, &tasks, &moves, &due)
		require.NoError(t, err)
		assert.Equal(t, due, moves, "a due time came twice")
		assert.Equal(t, due, tasks)
	})
}
