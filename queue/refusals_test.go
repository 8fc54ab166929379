package queue

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// Every call for a queue that does not exist returns an error that names it and the command that creates
// it, and creates nothing.
func TestNoQueue(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q, err := New(db, "nobody's", Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, q.Close()) }()
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback()) }()
		for name, err := range map[string]error{
			"Ordered":    second(q.Ordered(t.Context())),
			"Enqueue":    second(q.Enqueue(t.Context(), Entry{})),
			"EnqueueTx":  second(q.EnqueueTx(t.Context(), tx, Entry{})),
			"List":       second(q.List(t.Context(), Filter{})),
			"Counts":     second(q.Counts(t.Context())),
			"Retry":      second(q.Retry(t.Context(), Filter{}, 1)),
			"Cancel":     second(q.Cancel(t.Context(), Filter{IDs: []uint64{1}})),
			"Prune":      second(q.Prune(t.Context(), 0)),
			"Schedule":   q.Schedule(t.Context(), Recurring{Name: "n", Cron: "@daily"}),
			"Unschedule": second(q.Unschedule(t.Context(), "n")),
			"Schedules":  second(q.Schedules(t.Context())),
			"Work":       q.Work(t.Context(), WorkerOptions{}, func(context.Context, Task) error { return nil }),
		} {
			require.ErrorIs(t, err, ErrNotFound, name)
			assert.ErrorContains(t, err, `"nobody's"`, name)
			assert.ErrorContains(t, err, "mqnotify init --queue", name)
		}
		for _, table := range []string{"mqnotify_task", "mqnotify_schedule"} {
			assert.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM "+table))
		}
	})
}

func second[T any](_ T, err error) error { return err }

// The error for an invalid number or time has the value as it was given, and the valid values.
func TestRefusalsSayWhat(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		worker := func(o WorkerOptions) error { return second(newWorker(q, o)) }
		entry := func(e Entry) error { return second(q.Enqueue(t.Context(), e)) }
		for says, err := range map[string]error{
			"Concurrency -1: from 1":         worker(WorkerOptions{Concurrency: -1}),
			"Batch -1: from 1":               worker(WorkerOptions{Batch: -1}),
			"Visibility -1s: from 100ms":     worker(WorkerOptions{Visibility: -time.Second}),
			"Visibility 1ns: from 100ms":     worker(WorkerOptions{Visibility: 1}),
			"PollInterval -1s: more than 0":  worker(WorkerOptions{PollInterval: -time.Second}),
			"Retries -2: 0 or more":          entry(Entry{Retries: -2}),
			"Delay -1s: 0 or more":           entry(Entry{Delay: -time.Second}),
			"Priority 40000: from -32768":    entry(Entry{Priority: 40_000}),
			"-2 retries: 0 or more":          second(q.Retry(t.Context(), Filter{}, -2)),
			"Limit -1: 0 or more":            second(q.List(t.Context(), Filter{Limit: -1})),
			`State "x": one of ["scheduled"`: second(q.List(t.Context(), Filter{States: []string{"x"}})),
			"older than -1s: from 0":         second(q.Prune(t.Context(), -time.Second)),
			"name the tasks":                 second(q.Cancel(t.Context(), Filter{})),
			"After and Limit are for List":   second(q.Cancel(t.Context(), Filter{States: []string{stateReady}, Limit: 1})),
			"After and Limit are for List: ": second(q.Retry(t.Context(), Filter{After: 1}, 0)),
		} {
			require.ErrorIs(t, err, notify.ErrOptions, says)
			assert.ErrorContains(t, err, says)
		}
	})
}
