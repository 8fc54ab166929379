package queue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A handler may take longer than the visibility timeout: the worker renews the claim as
// long as it runs, and no other worker gets the task.
func TestRenewal(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, config := database(t, s)
		q := newQueue(t, db, Options{})
		enqueue(t, q, "long")
		begun, end := make(chan Task, 10), make(chan struct{})
		handler := func(ctx context.Context, task Task) error {
			begun <- task
			select {
			case <-end:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		options := WorkerOptions{Claim: mode, Visibility: 15 * time.Second, StopTimeout: -1}
		work(t, q, options, handler)
		work(t, newQueue(t, openConfig(t, config), Options{}), options, handler)
		<-begun
		first := mysqltest.Value[string](t, db.Pool(), "SELECT CAST(state_at AS CHAR) FROM mqnotify_task")
		eventually(t, func() bool {
			return mysqltest.Value[bool](t, db.Pool(), "SELECT state_at > ? + INTERVAL 1500000 MICROSECOND FROM mqnotify_task", first)
		}, "not renewed")
		assert.Equal(t, 1, inState(t, db, stateInProgress))
		close(end)
		eventually(t, func() bool { return inState(t, db, stateDone) == 1 }, "not done")
		assert.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT attempts FROM mqnotify_task"))
		assert.Empty(t, begun)
	})
}

// A worker that reconnects renews its claims at once, because much of the time for which it
// trusts them may have passed. This one has a free handler, and so notices the loss when it happens.
func TestRenewsWhenBack(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		proxy := s.Proxy(t)
		enqueue(t, newQueue(t, db, Options{}), "long")
		begun := make(chan struct{})
		work(t, newQueue(t, openConfig(t, proxy.Config(config)), Options{}), WorkerOptions{Concurrency: 2, Visibility: time.Hour, StopTimeout: -1},
			func(ctx context.Context, _ Task) error {
				close(begun)
				<-ctx.Done()
				return context.Cause(ctx)
			})
		<-begun
		first := mysqltest.Value[string](t, db.Pool(), "SELECT CAST(state_at AS CHAR) FROM mqnotify_task")
		proxy.Down()
		proxy.Up()
		eventually(t, func() bool {
			return mysqltest.Value[bool](t, db.Pool(), "SELECT state_at > ? FROM mqnotify_task", first)
		}, "not renewed")
	})
}

// A worker that is cut off from the network loses its claims before another gets the tasks: its
// handlers' contexts end first, and their later results change nothing.
func TestCutOff(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, config := database(t, s)
		proxy := s.Proxy(t)
		enqueue(t, newQueue(t, db, Options{}), "task")
		visibility := mysqltest.Size(4*time.Second, 20*time.Second, 20*time.Second) // of which a tenth is between the two on a busy machine
		var mu sync.Mutex
		at := map[string]time.Time{}
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			if _, there := at[what]; !there {
				at[what] = time.Now()
			}
		}
		begun, lost, again := make(chan struct{}), make(chan struct{}), make(chan struct{})
		cut := work(t, newQueue(t, openConfig(t, proxy.Config(config)), Options{}), WorkerOptions{Claim: mode, Visibility: visibility},
			func(ctx context.Context, task Task) error {
				if task.Attempt > 1 {
					return nil
				}
				close(begun)
				<-ctx.Done()
				note("lost")
				close(lost)
				assert.ErrorIs(t, context.Cause(ctx), ErrClaimLost)
				select {
				case <-again:
				case <-time.After(patience):
				}
				return nil
			})
		<-begun
		proxy.Freeze()
		if testing.Short() { // of a short time too little is left between the two
			mysqltest.Await(t, lost, "the loss")
		}
		long := func(int) time.Duration { return time.Hour } // it stays failed, and no worker has it a third time
		other := work(t, newQueue(t, openConfig(t, config), Options{}), WorkerOptions{Claim: mode, Visibility: time.Minute, Backoff: long},
			func(_ context.Context, task Task) error {
				note("again")
				assert.Equal(t, 2, task.Attempt)
				assert.Equal(t, defaultRetries, task.Retries, "a lapse takes no retry")
				assert.Equal(t, 1, task.Lapses)
				close(again)
				return errors.New("so that the late result would show")
			})
		mysqltest.Await(t, again, "the second attempt")
		proxy.Thaw()
		eventually(t, func() bool { return inState(t, db, stateFailed) == 1 }, "not failed")
		require.NoError(t, cut.end(t))
		require.NoError(t, other.end(t))
		assert.Equal(t, 1, cut.of("lost"), "a result that came too late counts")
		mu.Lock()
		defer mu.Unlock()
		assert.True(t, at["lost"].Before(at["again"]), "the first was told %v after the second began", at["lost"].Sub(at["again"]))
		assert.Equal(t, 1, inState(t, db, stateFailed), "the late result changes nothing")
	})
}

// A task without retries that had begun when its worker was cut off, and whose claim has ended since, is dead. The worker that comes
// back must not take it for one whose claim had no answer.
func TestCutOffWithoutRetries(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		proxy := s.Proxy(t)
		q := newQueue(t, db, Options{})
		_, err := q.Enqueue(t.Context(), Entry{Payload: []byte("once"), Retries: -1})
		require.NoError(t, err)
		var begins atomic.Int32
		begun, ended := make(chan struct{}, 10), make(chan struct{}, 10)
		w := work(t, newQueue(t, openConfig(t, proxy.Config(config)), Options{}), WorkerOptions{Visibility: 12 * time.Second},
			func(ctx context.Context, _ Task) error {
				begins.Add(1)
				begun <- struct{}{}
				<-ctx.Done()
				ended <- struct{}{}
				return context.Cause(ctx)
			})
		mysqltest.Await(t, begun, "the handler")
		proxy.Down()
		mysqltest.Await(t, ended, "the handler's end")
		eventually(t, func() bool { return w.of("lost") == 1 }, "the result is not told as lost")
		proxy.Up()
		eventually(t, func() bool { return inState(t, db, stateDead) == 1 }, "not dead")
		require.NoError(t, w.end(t))
		assert.EqualValues(t, 1, begins.Load())
	})
}

// If a session is lost before the answer to a claim, the claimed tasks are given back when the
// worker reconnects.
func TestAnswerLost(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		enqueue(t, q, "1", "2", "3")
		l := newStore(t, db, mode == claimSkipLocked)
		known, _, err := l.round(t.Context(), nil, 1)
		require.NoError(t, err)
		_, _, err = l.round(t.Context(), nil, 1)
		require.NoError(t, err)
		other := newStore(t, db, mode == claimSkipLocked)
		other.owner = "test2"
		_, _, err = other.round(t.Context(), nil, 1)
		require.NoError(t, err)
		some, err := l.abandoned(t.Context(), known)
		require.NoError(t, err)
		assert.True(t, some)
		assert.Equal(t, "1:in progress 2:ready 3:in progress", mysqltest.Value[string](t, db.Pool(),
			"SELECT GROUP_CONCAT(payload, ':', state ORDER BY id SEPARATOR ' ') FROM mqnotify_task"))
		assert.Equal(t, 3*defaultRetries, mysqltest.Value[int](t, db.Pool(), "SELECT SUM(retries) FROM mqnotify_task"))
	})
}

// A worker gives back the tasks of a claim whose COMMIT ended after the worker had lost the session and had looked for such tasks.
func TestClaimCommittedLate(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		w, err := newWorker(q, WorkerOptions{Claim: mode, Owner: "host", Visibility: 15 * time.Second})
		require.NoError(t, err)
		w.limitNext(1, context.DeadlineExceeded)
		require.True(t, time.Now().Before(w.unanswered))
		w.unanswered = time.Now().Add(time.Hour) // for a slow machine
		handled := make(chan Task, 2)
		ctx, stop := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			result <- w.run(ctx, func(_ context.Context, task Task) error { handled <- task; return nil })
		}()
		enqueue(t, q, "first")
		mysqltest.Receive(t, handled) // the worker looked for such tasks before
		mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_task (queue, state, owner, attempts, retries, payload, state_at)"+
			" SELECT queue, 'in progress', ?, 1, 0, 'late', UTC_TIMESTAMP(6) + INTERVAL 1 DAY FROM mqnotify_task", w.options.Owner)
		require.Equal(t, "late", string(mysqltest.Receive(t, handled).Payload))
		stop()
		require.NoError(t, mysqltest.Receive(t, result))
	})
}

// slowConn receives 100 KB a second.
type slowConn struct{ net.Conn }

func (c slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	<-time.After(time.Duration(n) * time.Second / 100_000)
	return n, err
}

// A worker that can't read the tasks of a whole claim in time, here 10 s, claims fewer, and then waits longer for a single task.
func TestSmallerClaimAfterALoss(t *testing.T) {
	mysqltest.NotShort(t, "TestReconnects")
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, config := database(t, s)
		enqueue(t, newQueue(t, db, Options{}), append(slices.Repeat([]string{strings.Repeat("x", 50_000)}, 20), strings.Repeat("x", 700_000))...)
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return slowConn{conn}, err
		}
		q := newQueue(t, openConfig(t, config), Options{})
		w, err := newWorker(q, WorkerOptions{Claim: mode, Batch: 20})
		require.NoError(t, err)
		w.answer = 5 * time.Second

		ctx, stop := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- w.run(ctx, func(context.Context, Task) error { return nil }) }()
		eventually(t, func() bool { return inState(t, db, stateDone) == 21 }, "not all tasks are done")
		stop()
		assert.NoError(t, mysqltest.Receive(t, result))
	})
}

// A worker continues by itself after its connections were cut repeatedly, and after the
// server was killed and came back; every task is done, and no two workers have one at once.
func TestReconnects(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		tasks := mysqltest.Many(60, 300, 3000)
		own := s.Start(t)
		proxy := own.Proxy(t)
		type reconnecting struct {
			db   *notify.DB
			held *holders
			work *running
		}
		var all []reconnecting // of both modes, in a database of its own
		for _, mode := range []string{claimSkipLocked, claimUpdate} {
			db, config := database(t, own)
			q := newQueue(t, db, Options{})
			for i := range tasks {
				enqueue(t, q, fmt.Sprint(i))
			}
			held := newHolders(t)
			all = append(all, reconnecting{db, held, work(t, newQueue(t, openConfig(t, proxy.Config(config)), Options{}),
				WorkerOptions{Claim: mode, Concurrency: 4, Batch: 8, Visibility: 2 * time.Second, Backoff: noWait}, held.handle)})
		}
		for i := range 4 {
			enough := (i + 1) * tasks / 6
			for _, r := range all {
				eventually(t, func() bool { return r.held.count() >= enough }, "no more is done")
			}
			if i == 2 {
				own.Kill()
				own.Restart(t)
			} else {
				proxy.Down()
				proxy.Up()
			}
		}
		for _, r := range all {
			eventually(t, func() bool { return inState(t, r.db, stateDone) == tasks }, "not all are done")
			require.NoError(t, r.work.end(t))
			assert.Zero(t, inState(t, r.db, stateDead))
		}
	})
}

// holders detects a task that two workers have at once, within a process.
type holders struct {
	t  *testing.T
	mu sync.Mutex
	by map[uint64]int // the attempt
	n  int
}

func newHolders(t *testing.T) *holders { return &holders{t: t, by: map[uint64]int{}} }

func (h *holders) handle(ctx context.Context, task Task) error {
	h.mu.Lock()
	assert.Zero(h.t, h.by[task.ID], "task %d is in hand", task.ID)
	h.by[task.ID] = task.Attempt
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.by, task.ID)
		h.n++
	}()
	select {
	case <-time.After(3 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *holders) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

// A worker whose claim has lapsed can neither finish the task, nor renew the claim, nor give it
// back, while another worker has it.
func TestLateResult(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		enqueue(t, newQueue(t, db, Options{}), "task")
		late, other := newStore(t, db, mode == claimSkipLocked), newStore(t, db, mode == claimSkipLocked)
		old, _, err := late.round(t.Context(), nil, 1)
		require.NoError(t, err)
		lapse(t, db, other)
		now, _, err := other.round(t.Context(), nil, 1)
		require.NoError(t, err)
		require.Equal(t, old[0].Attempt+1, now[0].Attempt)

		for _, kind := range []outcomeKind{wasDone, wasFailed, wasFatal, wasReleased} {
			o := []outcome{{held: &held{task: old[0]}, kind: kind}}
			_, _, err = late.round(t.Context(), o, 0)
			require.NoError(t, err)
			assert.Equal(t, 1, inState(t, db, stateInProgress), "%d", kind)
			tooLate, err := late.lateOf(t.Context(), o)
			require.NoError(t, err)
			assert.Len(t, tooLate, 1)
		}
		lost, _, _, err := late.renew(t.Context(), old)
		require.NoError(t, err)
		assert.Equal(t, old, lost)
		require.ErrorIs(t, finishAlone(t.Context(), db, old[0]), ErrClaimLost)
		require.NoError(t, finishAlone(t.Context(), db, now[0]))
	})
}

// If more failures than fit into a packet come while the server can't be reached, several packets
// store them.
func TestManyFailures(t *testing.T) {
	mysqltest.NotShort(t, "TestManyLongErrors")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t, "--max-allowed-packet="+"8M")
		db, config := database(t, own)
		proxy := own.Proxy(t)
		const tasks = 1100
		enqueue(t, newQueue(t, db, Options{}), make([]string, tasks)...)
		begun, cut := make(chan struct{}), make(chan struct{})
		var failed atomic.Int32
		text := strings.Repeat("x", 8<<10)
		options := WorkerOptions{Batch: tasks, Visibility: time.Hour, Backoff: func(int) time.Duration { return time.Hour }}
		work(t, newQueue(t, openConfig(t, proxy.Config(config)), Options{}), options, func(context.Context, Task) error {
			if failed.Add(1) == 1 {
				close(begun)
				<-cut
			}
			return errors.New(text)
		})
		mysqltest.Await(t, begun, "the first task")
		proxy.Down()
		close(cut)
		mysqltest.Eventually(t, "all have failed", func() bool { return failed.Load() == tasks })
		proxy.Up()
		mysqltest.Eventually(t, "all are written down", func() bool { return inState(t, db, stateFailed) == tasks })
	})
}
