package queue

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A payload that fits into a packet of the server can be a task, whatever its bytes are. A larger one is refused before it is
// sent, with its size.
func TestLargeTasks(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		const packet = 1 << 20
		s := shared.Start(t, "--max-allowed-packet=1M")
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		largest := packet - aroundRow - len("key") - len("mail") - 100
		quotes := func(n int) []byte { return bytes.Repeat([]byte{'\''}, n) }
		_, err := q.Enqueue(t.Context(), Entry{Payload: quotes(largest), Unique: "key"})
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), Entry{Payload: quotes(300 << 10)}, Entry{Payload: quotes(300 << 10)}, Entry{Payload: quotes(300 << 10)})
		require.NoError(t, err)

		tooLarge := Entry{Payload: quotes(largest + 1), Unique: "yek"}
		tx, err := db.Pool().Beginx()
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		for name, enter := range map[string]func() error{
			"Enqueue":   func() error { _, err := q.Enqueue(t.Context(), Entry{}, tooLarge); return err },
			"EnqueueTx": func() error { _, err := q.EnqueueTx(t.Context(), tx, Entry{}, tooLarge); return err },
		} {
			err := enter()
			var sizes *notify.TooLargeError
			require.ErrorAs(t, err, &sizes, name)
			assert.Equal(t, notify.TooLargeError{What: "task", Index: 1, Size: packet + 1, Limit: packet}, *sizes, name)
			require.NotErrorIs(t, err, notify.ErrUnknown)
		}
		err = q.Schedule(t.Context(), Recurring{Name: "large", Cron: "@daily", Entry: Entry{Payload: quotes(packet / 2)}})
		require.ErrorAs(t, err, new(*notify.TooLargeError))
		require.Equal(t, 4, inState(t, db, stateReady))

		var got collected
		work(t, q, WorkerOptions{Concurrency: 4}, got.handle)
		eventually(t, func() bool { return inState(t, db, stateDone) == 4 }, "the large tasks are not done")
		sizes := map[int]int{}
		for _, task := range got.tasks() {
			require.Empty(t, strings.Trim(string(task.Payload), "'"))
			sizes[len(task.Payload)]++
		}
		assert.Equal(t, map[int]int{largest: 1, 300 << 10: 3}, sizes)
	})
}

// The worker remembers a claim that was lost while its handler ran, but not the payload.
func TestLostClaimHasNoPayload(t *testing.T) {
	mysqltest.Once(t)
	begun, dropped := make(chan Task, 1), make(chan Task, 1)
	h := newPool(1, func(ctx context.Context, task Task) error {
		begun <- task
		<-ctx.Done()
		return nil
	}, nil)
	h.dropped = func(task Task) { dropped <- task }
	ctx, cancel := context.WithCancel(t.Context())
	h.start(ctx)
	defer h.close()
	defer cancel()
	task := Task{ID: 1, Attempt: 1, Payload: []byte("large")}
	h.take([]Task{task}, time.Now(), time.Hour)
	require.Equal(t, task, mysqltest.Receive(t, begun))
	h.renewed([]Task{task}, []Task{task}, time.Now(), time.Hour)
	mysqltest.Receive(t, dropped)
	require.Equal(t, []Task{{ID: 1, Attempt: 1}}, h.known())
}
