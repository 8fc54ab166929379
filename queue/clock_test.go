package queue

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// delayMain enters tasks for later, and a recurring one.
func delayMain(q *Queue) error {
	_, err := q.Enqueue(context.Background(), Entry{Payload: []byte("later"), Delay: 300 * time.Millisecond},
		Entry{Payload: []byte("hour"), Delay: 59 * time.Minute})
	if err != nil {
		return err
	}
	err = q.Schedule(context.Background(), Recurring{Name: "soon", Cron: "@every 1s", Entry: Entry{Payload: []byte("soon")}})
	if err != nil {
		return err
	}
	return q.Close()
}

// A client whose clock is an hour off changes nothing: not when tasks are due, not how long
// claims hold, its own or those of others.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	mysqltest.NotShort(t, "guard.TestClockOff")
	for _, off := range mysqltest.Size([]time.Duration{time.Hour}, []time.Duration{time.Hour}, []time.Duration{time.Hour, -time.Hour}) {
		program := mysqltest.ClockOff(t, off)
		t.Run(off.String(), func(t *testing.T) {
			each(t, func(t *testing.T, s *mysqltest.Server) { wrongClock(t, s, program, off) })
		})
	}
}

func wrongClock(t *testing.T, s *mysqltest.Server, program string, off time.Duration) {
	const visibility, takes = 8 * time.Second, 9 * time.Second // a stall loses no claim
	db, config := database(t, s)
	makeRuns(t, db)
	q := newQueue(t, db, Options{})
	enqueue(t, q, "lapsed", "claimed")
	const claim = "UPDATE mqnotify_task SET state = 'in progress', attempts = 1, state_at = UTC_TIMESTAMP(6) + INTERVAL ? SECOND WHERE payload = ?"
	mysqltest.Exec(t, db.Pool(), claim, 1, "lapsed")
	mysqltest.Exec(t, db.Pool(), claim, 3000, "claimed")
	told := processTold{DSN: config.FormatDSN(), Record: config.FormatDSN(), Visibility: visibility, Takes: takes, Handlers: 1}
	start := func(role string) *process {
		told := told
		told.Role, told.Name, told.Off = role, "wrong", off
		return startProgram(t, program, told)
	}
	delayer := start("delayer")
	<-delayer.ended
	require.True(t, delayer.command.ProcessState.Success())
	const hour = "SELECT ABS(TIMESTAMPDIFF(SECOND, state_at, UTC_TIMESTAMP(6) + INTERVAL 59 MINUTE)) FROM mqnotify_task WHERE payload = 'hour'"
	assert.Less(t, mysqltest.Value[int](t, db.Pool(), hour), 60)
	const next = "SELECT ABS(TIMESTAMPDIFF(SECOND, next_at, UTC_TIMESTAMP(6))) FROM mqnotify_schedule"
	assert.Less(t, mysqltest.Value[int](t, db.Pool(), next), 60)

	wrong := start("worker")
	told.Role, told.Name = "worker", "right"
	startProcess(t, told)
	done := func(payload string) int {
		return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task WHERE state = 'done' AND payload = ?", payload)
	}
	eventually(t, func() bool { return done("later") == 1 && done("lapsed") == 1 && done("soon") > 1 }, "what is due did not come")
	assert.Less(t, mysqltest.Value[int](t, db.Pool(), next), 60)
	_, err := q.Unschedule(t.Context(), "soon")
	require.NoError(t, err)
	assert.Less(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task WHERE payload = 'soon'"), 60, "a due time is entered once")

	// Both hold tasks, for longer than a claim holds, and then the wrong one is killed.
	tasks := 0
	holds := func() bool {
		return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(DISTINCT worker) FROM runs r JOIN mqnotify_task t ON t.id = r.task"+
			" WHERE t.payload = 'long' AND r.ended IS NULL") == 2
	}
	for range mysqltest.Size(1, 1, 2) {
		enqueue(t, q, "long", "long")
		tasks += 2
		eventually(t, func() bool {
			if inState(t, db, stateReady) == 0 && !holds() { // one has done them all
				enqueue(t, q, "long", "long")
				tasks += 2
			}
			return holds()
		}, "each has some")
	}
	killWorker(t, db, wrong)
	require.Eventually(t, func() bool { return done("long") == tasks }, 4*patience, 5*tick, "all are done")
	assert.Empty(t, overlaps(t, db, "a.task = b.task AND a.attempt < b.attempt"), "handled twice at once")
	assert.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM runs WHERE lost"), "who holds a task renews in time")
	assert.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM runs r JOIN mqnotify_task t ON t.id = r.task WHERE t.payload IN ('hour', 'claimed')"))
}
