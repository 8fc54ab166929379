package guard_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// clockMain prints its time, and then the result of each order: for a lease ("take",
// "hold"), an interval ("every") or once ("once").
func clockMain(ctx context.Context, db *notify.DB, t childInput) error {
	lease, err := guard.NewMutex(db, t.Name, guard.MutexOptions{Kind: "lease", TTL: t.TTL})
	if err != nil {
		return err
	}
	every := guard.Every{Key: t.Name, Interval: 59 * time.Minute}
	say("%s", time.Now().Format(time.RFC3339Nano))
	return eachOrder(func(order string) error {
		var through bool
		var err error
		switch order {
		case "take":
			_, err = lease.Take(ctx)
			through = err == nil
		case "hold":
			_, err = lease.TryLock(ctx)
			through = err == nil
		case "every":
			through, err = every.Try(ctx, db)
		case "once":
			through, err = readyOnce(db).Try(ctx, t.Name)
		}
		say("%v %v", through, err)
		return nil
	})
}

// A client whose clock is an hour off, or that is in another time zone, changes neither when leases expire, nor which holder
// gets a lease, nor what the server stores.
func TestClockOff(t *testing.T) {
	t.Parallel()
	for _, off := range mysqltest.Size([]time.Duration{time.Hour}, []time.Duration{time.Hour}, []time.Duration{time.Hour, -time.Hour}) {
		program := mysqltest.ClockOff(t, off)
		t.Run(off.String(), func(t *testing.T) {
			mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) { clockOff(t, s, program, off) })
		})
	}
}

func clockOff(t *testing.T, s *mysqltest.Server, program string, off time.Duration) {
	const ttl = 8 * time.Second // a stall loses none
	db, config := openState(t, s)
	abroad := func(dsn string) string {
		config, err := mysql.ParseDSN(dsn)
		require.NoError(t, err)
		config.Params = map[string]string{"time_zone": "'+09:00'"}
		return config.FormatDSN()
	}
	zone := abroad(config.FormatDSN())
	start := func(program, name string) (say func(order string, want bool)) {
		input := childInput{Role: "clock", DSN: zone, Name: name, TTL: ttl}
		p := startProgram(t, program, input)
		line, _ := p.read(t)
		now, err := time.Parse(time.RFC3339Nano, line)
		require.NoError(t, err)
		if program == os.Args[0] {
			require.Less(t, time.Since(now).Abs(), time.Minute)
		} else {
			require.Less(t, (time.Until(now) - off).Abs(), time.Minute, "its clock is off")
		}
		return func(order string, want bool) {
			t.Helper()
			p.send(order)
			line, _ := p.read(t)
			require.Equal(t, want, strings.HasPrefix(line, "true"), "%s: %s", order, line)
		}
	}
	right, wrong := start(os.Args[0], "x"), start(program, "x")
	again, wrongAgain := start(os.Args[0], "y"), start(program, "y")
	free := func() bool {
		status := stateOf(t, db, "x")
		require.Less(t, status.Left, 2*ttl, "taken after the time that the statement began with, at most")
		return !status.Held
	}
	// expires waits until the lease has expired by the server's clock.
	expires := func() {
		t.Helper()
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_lease SET expires_at = expires_at - INTERVAL ? SECOND WHERE name = 'x'", int((ttl - time.Second).Seconds()))
		require.Eventually(t, free, patience, tick)
	}
	for range 2 { // the one takes it, the other waits for its end, by the server's clock
		right("take", true)
		wrong("take", false)
		expires()
		wrong("take", true)
		right("take", false)
		expires()
	}
	right("every", true)
	wrong("every", false)
	wrongAgain("every", true)
	again("every", false)
	right("once", true)
	wrong("once", false)
	wrongAgain("once", true)
	again("once", false)
	require.Zero(t, mysqltest.Value[int](t, db.Pool(), `SELECT COUNT(*) FROM (SELECT done_at FROM mqnotify_once UNION ALL SELECT taken_at FROM mqnotify_interval
		UNION ALL SELECT taken_at FROM mqnotify_lease) t WHERE ABS(TIMESTAMPDIFF(SECOND, done_at, UTC_TIMESTAMP(6))) > 60`))

	// A holder renews in time, and keeps the lease.
	wrong("hold", true)
	renewals := func() int {
		return mysqltest.Value[int](t, db.Pool(), "SELECT renewals FROM mqnotify_lease WHERE name = 'x'")
	}
	begun, last := time.Now(), renewals()+mysqltest.Many(1, 4, 6) // four are later than its first end
	for renewals() < last {
		require.Less(t, time.Since(begun), patience)
		right("take", false)
		<-time.After(10 * tick)
	}
	require.False(t, free())

	// Processes with either clock share a lease.
	w := startWorkers(t, s, childInput{Role: "worker", Kind: "lease", Name: "the resource", TTL: ttl}, same, 2)
	input := w.inputs[0]
	input.DSN = abroad(input.DSN)
	for range 2 {
		w.all = append(w.all, startProgram(t, program, input))
	}
	require.Eventually(t, func() bool {
		return mysqltest.Value[int](t, w.db.Pool(), "SELECT COUNT(DISTINCT process) FROM works") == len(w.all)
	}, patience, tick)
	w.goOn(20)
	w.stop()
	require.Zero(t, w.twice(), "two holders at once")
	t.Logf("clocks %v off: held %d times, nobody at the same time", off, w.done())
}
