package queue

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// endsAt ends a context after a number of writes to its connections.
type endsAt struct {
	left atomic.Int32
	end  context.CancelFunc
}

type endingConn struct {
	net.Conn
	at *endsAt
}

func (c endingConn) Write(b []byte) (int, error) {
	if c.at.left.Add(-1) == 0 {
		c.at.end()
	}
	return c.Conn.Write(b)
}

// A worker that stops while it connects returns nil, whichever of its first statements is interrupted.
func TestWorkerStopsAtAnyStatement(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		_, config := database(t, s)
		for statement := range mysqltest.Size[int32](15, 25, 25) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // it may send fewer
			defer cancel()
			at := &endsAt{end: cancel}
			own := config.Clone()
			own.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return endingConn{conn, at}, err
			}
			w, err := newWorker(newQueue(t, openConfig(t, own), Options{}), WorkerOptions{})
			require.NoError(t, err)
			at.left.Store(statement + 1)
			require.NoError(t, w.run(ctx, func(context.Context, Task) error { return nil }), "statement %d", statement)
		}
	})
}

// A worker that stops stores its results although another session has the unique key of one of them locked, and waits for that one.
func TestStopWithALockedKey(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, config := database(t, s)
		q := newQueue(t, db, Options{})
		_, err := q.Enqueue(t.Context(), Entry{Unique: "key"}, Entry{Unique: "free"}, Entry{})
		require.NoError(t, err)
		begun, ends := make(chan struct{}, 3), make(chan struct{})
		w := work(t, newQueue(t, openConfig(t, config), Options{}), WorkerOptions{Claim: mode, Concurrency: 3}, func(context.Context, Task) error {
			begun <- struct{}{}
			mysqltest.Await(t, ends, "the end of the tasks")
			return nil
		})
		for range 3 {
			<-begun
		}
		tx := lockKey(t, db, q, "key")
		w.stop()
		close(ends)
		eventually(t, func() bool { return inState(t, db, stateDone) == 2 }, "the others' results are not stored")
		require.Equal(t, 1, inState(t, db, stateInProgress))
		require.NoError(t, tx.Rollback())
		require.NoError(t, w.wait(t))
		require.Equal(t, 3, inState(t, db, stateDone))
	})
}

// It waits for no longer than StopTimeout.
func TestStopTimeoutWithALockedKey(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		q := newQueue(t, db, Options{})
		_, err := q.Enqueue(t.Context(), Entry{Unique: "key"})
		require.NoError(t, err)
		begun, ends := make(chan struct{}), make(chan struct{})
		w := work(t, newQueue(t, openConfig(t, config), Options{}), WorkerOptions{StopTimeout: time.Second}, func(context.Context, Task) error {
			close(begun)
			mysqltest.Await(t, ends, "the end of the task")
			return nil
		})
		<-begun
		lockKey(t, db, q, "key")
		w.stop()
		close(ends)
		require.ErrorContains(t, w.wait(t), "1 results not stored")
	})
}

// A worker that stops while it has no session begins no task.
func TestStopWithoutSession(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		proxy := s.Proxy(t)
		enqueue(t, newQueue(t, db, Options{}), "first", "second")
		begun := make(chan struct{}, 2)
		options := WorkerOptions{Concurrency: 1, Batch: 2, StopTimeout: time.Second}
		w := work(t, newQueue(t, openConfig(t, proxy.Config(config)), Options{}), options, func(ctx context.Context, _ Task) error {
			begun <- struct{}{}
			<-ctx.Done() // at the end of StopTimeout
			return nil
		})
		<-begun
		require.Equal(t, 2, inState(t, db, stateInProgress))
		proxy.Down()
		require.ErrorContains(t, w.end(t), "1 results not stored")
		require.Empty(t, begun)
	})
}
