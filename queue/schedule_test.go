package queue

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A recurring task is stored, changed and deleted; the workers enter it when it is due.
func TestSchedule(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		nightly := Recurring{Name: "nightly", Cron: "0 3 * * *", Entry: Entry{Payload: []byte("report"), Priority: 2, Retries: noRetries, Unique: "key"}}
		require.NoError(t, q.Schedule(t.Context(), nightly))
		all, err := q.Schedules(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		assert.Equal(t, 3, all[0].Next.Hour())
		assert.Zero(t, all[0].Next.Minute())
		nightly.Next = all[0].Next
		assert.Equal(t, nightly, all[0])

		// It is due now, and was while no worker ran: the missed times make one task.
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_schedule SET next_at = next_at - INTERVAL 5 DAY")
		var got collected
		w := work(t, q, WorkerOptions{Claim: mode}, got.handle)
		got.waitFor(t, "report")
		task := got.tasks()[0]
		assert.Equal(t, []any{2, 0, "key"}, []any{task.Priority, task.Retries, task.Unique})
		again, err := q.Schedules(t.Context())
		require.NoError(t, err)
		assert.Equal(t, all[0].Next, again[0].Next, "the next time, not a missed one")

		// A schedule that is stored while the worker sleeps wakes it in time.
		require.NoError(t, q.Schedule(t.Context(), Recurring{Name: "often", Cron: "@every 1s", Entry: Entry{Payload: []byte("tick")}}))
		eventually(t, func() bool { return len(got.payloads()) >= 3 }, "it does not come in time")
		assert.Equal(t, []string{"report", "tick", "tick"}, got.payloads()[:3])

		nightly.Entry.Payload = []byte("another")
		require.NoError(t, w.end(t)) // or it would be entered
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_schedule SET next_at = '2000-01-01 00:00:00' WHERE name = 'nightly'")
		require.NoError(t, q.Schedule(t.Context(), nightly))
		all, err = q.Schedules(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 2000, all[0].Next.Year(), "the same Cron keeps its time")
		nightly.Cron = "CRON_TZ=Europe/Berlin 0 3 * * *"
		require.NoError(t, q.Schedule(t.Context(), nightly))
		all, err = q.Schedules(t.Context())
		require.NoError(t, err)
		assert.Contains(t, []int{1, 2}, all[0].Next.Hour(), "of another zone")
		assert.Equal(t, "another", string(all[0].Entry.Payload))
		for _, want := range []bool{true, false} {
			was, err := q.Unschedule(t.Context(), "nightly")
			require.NoError(t, err)
			assert.Equal(t, want, was)
		}
	})
}

// Where no clock changes, a schedule is due when the cron library says so.
func TestScheduleLikeCron(t *testing.T) {
	random := mysqltest.Random(t)
	for _, text := range []string{
		"* * * * *", "*/7 3-5 * * *", "0 0 1 1 *", "30 12 31 * *", "0 0 29 2 *", "0 6 13 * FRI", "15,45 * */2 * MON", "5 4 * 6-8 SUN", "@hourly", "@every 90m", "0 0 30 2 *",
	} {
		schedule, err := parseCron(text)
		require.NoError(t, err)
		for range 200 {
			at := time.Unix(random.Int64N(3e9), random.Int64N(1e9)).UTC()
			want := schedule.Next(at)
			if got := nextDue(schedule, at); !want.IsZero() || !got.IsZero() {
				require.WithinDuration(t, want, got, 0, "%s after %s", text, at)
			}
		}
	}
}

// Times that a zone's clocks skip are left out, and those that they show twice occur twice.
func TestScheduleClocksChanged(t *testing.T) {
	for _, test := range []struct{ cron, now, next string }{
		{"CRON_TZ=Europe/Berlin 30 2 * * *", "2027-03-27 01:30:00", "2027-03-29 00:30:00"},
		{"CRON_TZ=Europe/Berlin 30 2 * * *", "2026-10-24 00:30:00", "2026-10-25 00:30:00"},
		{"CRON_TZ=Europe/Berlin 30 2 * * *", "2026-10-25 00:30:00", "2026-10-25 01:30:00"},
		{"CRON_TZ=Europe/Berlin 30 2 * * *", "2026-10-25 01:30:00", "2026-10-26 01:30:00"},
		{"30 2 * * *", "2026-10-25 00:30:00", "2026-10-25 02:30:00"},
		// These clocks skip midnight.
		{"CRON_TZ=Africa/Cairo 0 5 * * FRI", "2026-04-18 00:00:00", "2026-04-24 02:00:00"},
		{"CRON_TZ=Africa/Cairo 0 0 * * FRI", "2026-04-18 00:00:00", "2026-04-30 21:00:00"},
		{"CRON_TZ=America/Santiago 0 5 * * SAT", "2026-09-05 09:00:00", "2026-09-12 08:00:00"},
		{"CRON_TZ=America/Santiago 30 1 6 9 *", "2026-01-01 00:00:00", "2026-09-06 04:30:00"},
	} {
		next, err := nextTime(test.cron, test.now)
		require.NoError(t, err)
		assert.Contains(t, next, test.next, "%s after %s", test.cron, test.now)
	}
}

// One due time makes one task, even if several workers try at the same moment; with a unique key, none
// while the previous one is unfinished.
func TestEnterDueRaces(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		require.NoError(t, q.Schedule(t.Context(), Recurring{Name: "plain", Cron: "@yearly"}))
		require.NoError(t, q.Schedule(t.Context(), Recurring{Name: "unique", Cron: "@yearly", Entry: Entry{Unique: "key"}}))
		lines := make([]*store, 8)
		for i := range lines {
			lines[i] = newStore(t, db, mode == claimSkipLocked)
		}
		for round := range 20 {
			mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_schedule SET next_at = '2000-01-01 00:00:00'")
			var all sync.WaitGroup
			for _, l := range lines {
				all.Go(func() {
					_, err := l.enterDue(t.Context())
					assert.NoError(t, err)
				})
			}
			all.Wait()
			require.Equal(t, round+2, inState(t, db, stateReady))
		}
	})
}

// A recurring task whose Cron this host can't parse delays neither other ones nor tasks, and is
// entered once it is repaired.
func TestScheduleUnknown(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		require.NoError(t, q.Schedule(t.Context(), Recurring{Name: "bad", Cron: "@yearly", Entry: Entry{Payload: []byte("mended")}}))
		require.NoError(t, q.Schedule(t.Context(), Recurring{Name: "good", Cron: "@yearly", Entry: Entry{Payload: []byte("good")}}))
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_schedule SET next_at = '2000-01-02 00:00:00'")
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_schedule SET cron = 'CRON_TZ=Atlantis/Poseidonis 0 3 * * *', next_at = '2000-01-01 00:00:00' WHERE name = 'bad'")
		var got collected
		w := work(t, q, WorkerOptions{}, got.handle)
		got.waitFor(t, "good")
		enqueue(t, q, "task")
		got.waitFor(t, "good", "task")
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_schedule SET cron = '@yearly' WHERE name = 'bad'")
		q.Notify(t.Context())
		enqueue(t, q, "another")
		eventually(t, func() bool { return len(got.tasks()) == 4 }, "the mended one does not come")
		assert.Contains(t, got.payloads(), "mended")
		require.NoError(t, w.end(t))
	})
}

func TestScheduleRefusals(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		for _, r := range []Recurring{
			{Name: "", Cron: "@daily"}, {Name: "n", Cron: ""}, {Name: "n", Cron: "every day"}, {Name: "n", Cron: "0 0 31 2 *"}, {Name: "n", Cron: "@every 1ms"},
			{Name: "n", Cron: "CRON_TZ=Nowhere/City 0 0 * * *"}, {Name: "n", Cron: "@daily", Entry: Entry{Delay: time.Second}},
			{Name: "n", Cron: "@daily", Entry: Entry{Priority: 1 << 20}},
		} {
			require.ErrorIs(t, q.Schedule(t.Context(), r), notify.ErrOptions, "%+v", r)
		}
	})
}
