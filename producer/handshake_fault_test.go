package producer

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// holder returns when a session other than the given one holds the topic's lock.
func holder(t *testing.T, db *notify.DB, topic string, other uint64) (id uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		err := db.Pool().GetContext(t.Context(), &id, "SELECT COALESCE(IS_USED_LOCK(?), 0)", core.HandshakeName(db.Name(), topic))
		return assert.NoError(t, err) && id != 0 && id != other
	}, 30*time.Second, 10*time.Millisecond)
	return id
}

func TestHandshakeConsumerDies(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		ctx := deadline(t)
		r := newReader(t, db, "x")
		r.begin(t)
		h := run(t, db, "x", Options{})
		queued(t, db)
		first := publishing(ctx, h, payload(0))
		_, _, err := r.read(ctx, 1) // and keeps the lock
		require.NoError(t, err)
		require.NoError(t, <-first)
		second := publishing(ctx, h, payload(1))
		mysqltest.KillSession(t, db.Pool(), r.session.ID())
		require.NoError(t, <-second)
		for i := 2; i < 5; i++ { // no consumer is there: no wait
			_, err := h.Publish(ctx, payload(i))
			require.NoError(t, err)
		}
		next := newReader(t, db, "x") // finds them all
		next.last = r.last
		all, _, err := next.read(ctx, 4)
		require.NoError(t, err)
		assert.Equal(t, []string{"1", "2", "3", "4"}, all)
	})
}

func TestHandshakeProducerDies(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		ctx := deadline(t)
		log := newLogged()
		h := run(t, db, "x", Options{Logger: slog.New(log)})
		_, err := h.Publish(ctx, payload(0))
		require.NoError(t, err)
		dead := holder(t, db, "x", 0)
		mysqltest.KillSession(t, db.Pool(), dead) // idle, it notices without a statement
		holder(t, db, "x", dead)
		assert.Len(t, log.messages(), 1)

		r := newReader(t, db, "x")
		second := publishing(ctx, h, payload(1))
		all, _, err := r.read(ctx, 2)
		require.NoError(t, err)
		assert.Equal(t, []string{"0", "1"}, all)
		require.NoError(t, <-second)

		// Kill it while it waits for the end of the consumer's turn. The messages that are published
		// in the meantime are inserted once, by the next session.
		waiting := queued(t, db)
		third := publishing(ctx, h, payload(2))
		mysqltest.KillSession(t, db.Pool(), waiting)
		all, _, err = r.read(ctx, 1)
		require.NoError(t, err)
		assert.Equal(t, []string{"2"}, all)
		require.NoError(t, <-third)
		assert.Equal(t, 3, count(t, db, "x"))
	})
}

// A consumer that starts first finds nothing, does not block a producer that starts later, and gets
// its messages.
func TestHandshakeConsumerStartsFirst(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		ctx := deadline(t)
		r := newReader(t, db, "x")
		r.begin(t)
		h := run(t, db, "x", Options{})
		queued(t, db)
		published := publishing(ctx, h, payload(1))
		all, _, err := r.read(ctx, 1)
		require.NoError(t, err)
		assert.Equal(t, []string{"1"}, all)
		require.NoError(t, <-published)
	})
}

func TestHandshakeOneBadMessageFailsAlone(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		ctx := deadline(t)
		var hints counted
		r := newReader(t, db, "x")
		r.begin(t)
		h := run(t, db, "x", Options{BatchRows: 2})
		h.hint = hints.hint
		queued(t, db)
		first := publishing(ctx, h, payload(0))
		_, _, err := r.read(ctx, 1)
		require.NoError(t, err)
		require.NoError(t, <-first)

		large := publishing(ctx, h, Message{Payload: make([]byte, 64<<20)})
		good := publishing(ctx, h, payload(1), payload(2), payload(3)) // a transaction
		_, _, err = r.read(ctx, 3)
		require.NoError(t, err)
		require.NoError(t, <-good)
		require.NoError(t, r.Close()) // the rest need not wait for a consumer
		err = <-large
		require.ErrorAs(t, err, new(*notify.TooLargeError))
		assert.ErrorContains(t, err, "`x`")
		_, err = h.Publish(ctx, Message{Headers: map[string]string{"x": "\xff"}})
		require.ErrorContains(t, err, "UTF-8")
		none, err := h.Publish(ctx)
		require.NoError(t, err)
		assert.Nil(t, none)
		require.Eventually(t, func() bool { return hints.count() == 2 }, 30*time.Second, 10*time.Millisecond)
	})
}

// Without a Run Publish waits for one; after a Run has ended it returns an error.
func TestHandshakeNotRunning(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		idle, err := New(db, "x", Options{Mode: modeHandshake})
		require.NoError(t, err)
		soon, cancelSoon := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancelSoon()
		_, err = idle.Publish(soon, Message{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.True(t, SafeToRetry(err))
		_, err = idle.PublishTx(t.Context(), db.Pool(), Message{})
		require.ErrorIs(t, err, notify.ErrOptions)
		require.ErrorIs(t, idle.Transact(t.Context(), nil), notify.ErrOptions)

		ctx := deadline(t)
		r := newReader(t, db, "x")
		r.begin(t)
		h := run(t, db, "x", Options{})
		queued(t, db)
		require.ErrorContains(t, h.Run(t.Context()), "runs already")

		// Run ends while a Publish waits for its turn.
		first := publishing(ctx, h, payload(0))
		_, _, err = r.read(ctx, 1)
		require.NoError(t, err)
		require.NoError(t, <-first)
		short, cancel := context.WithTimeoutCause(ctx, 50*time.Millisecond, errors.New("too late"))
		defer cancel()
		_, err = h.Publish(short, Message{})
		require.ErrorContains(t, err, "too late")
		assert.True(t, SafeToRetry(err), "never taken")
		waits := publishing(ctx, h, Message{})
		h.stop()
		require.ErrorIs(t, <-h.end, context.Canceled)
		require.ErrorIs(t, <-waits, errNotRunning)
		assert.Equal(t, 1, count(t, db, "x"))

		// Run may be called again.
		ctx, cancel = context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _ = h.Run(ctx) })
		defer wg.Wait()
		defer cancel()
		require.NoError(t, r.Close())
		require.Eventually(t, func() bool { _, err := h.Publish(ctx, Message{}); return err == nil }, 30*time.Second, 10*time.Millisecond)
	})
}

// Run returns the error of a failed first connection at once, and replaces a lost connection.
func TestHandshakeReconnects(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		direct := open(t, config)
		require.NoError(t, schema.Init(t.Context(), direct.Pool(), "x"))
		proxy := s.Proxy(t)
		config.Addr = proxy.Addr()
		proxy.Down()
		db := open(t, config)
		h, err := New(db, "x", Options{Mode: modeHandshake})
		require.NoError(t, err)
		require.ErrorContains(t, h.Run(t.Context()), "connect")
		_, err = h.Publish(t.Context(), Message{})
		require.ErrorIs(t, err, errNotRunning)

		proxy.Up()
		log := newLogged()
		up := run(t, db, "x", Options{Logger: slog.New(log)})
		ctx := deadline(t)
		_, err = up.Publish(ctx, payload(0))
		require.NoError(t, err)
		proxy.Down()
		require.Eventually(t, func() bool { return len(log.messages()) >= 1 }, 30*time.Second, 10*time.Millisecond)
		published := mysqltest.Result(func() error {
			for { // what is sent before it knows has no answer, and nothing arrives while the proxy is down
				if _, err := up.Publish(ctx, payload(1)); err == nil || SafeToRetry(err) || ctx.Err() != nil {
					return err
				}
			}
		})
		require.Eventually(t, func() bool { return len(log.messages()) >= 2 }, 30*time.Second, 10*time.Millisecond)
		proxy.Up()
		require.NoError(t, <-published)
		assert.Equal(t, 2, count(t, direct, "x"))
	})
}

// A caller that leaves while its messages are inserted gets ErrUnknown.
func TestHandshakeCallerLeaves(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		mysqltest.Exec(t, db.Pool(), "ALTER TABLE x ADD COLUMN slow INT")
		blocker, err := db.Pool().Connx(t.Context())
		require.NoError(t, err)
		defer blocker.Close()
		lock := core.LockName("test", db.Name())
		require.Equal(t, 1, mysqltest.Value[int](t, blocker, "SELECT GET_LOCK(?, 0)", lock))
		mysqltest.Exec(t, db.Pool(), "CREATE TRIGGER slow BEFORE INSERT ON x FOR EACH ROW SET NEW.slow = GET_LOCK('"+lock+"', 60) + RELEASE_LOCK('"+lock+"')")
		h := run(t, db, "x", Options{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		published := publishing(ctx, h, Message{})
		inserting(t, db)
		cancel()
		err = <-published
		require.ErrorIs(t, err, notify.ErrUnknown)
		require.ErrorIs(t, err, context.Canceled)
		// A turn that has begun is finished even if its caller has left.
		h.stop()
		mysqltest.Exec(t, blocker, "DO RELEASE_LOCK(?)", lock)
		require.ErrorIs(t, <-h.end, context.Canceled)
		assert.Equal(t, 1, count(t, db, "x"))
	})
}

// slowConn sends 200 KB a second.
type slowConn struct{ net.Conn }

func (c slowConn) Write(p []byte) (int, error) {
	<-time.After(time.Duration(len(p)) * time.Second / 200_000)
	return c.Conn.Write(p)
}

// Messages that take too long together are inserted in several turns. One that takes too long alone fails.
func TestHandshakeOverASlowConnection(t *testing.T) {
	mysqltest.NotShort(t, "TestHandshakeReconnects")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		direct := open(t, config)
		require.NoError(t, schema.Init(t.Context(), direct.Pool(), "x"))
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return slowConn{conn}, err
		}
		p, err := New(open(t, config), "x", Options{Mode: modeHandshake, BatchBytes: 250_000})
		require.NoError(t, err)
		p.handshake.patience = 6500 * time.Millisecond
		h := runIt(t, p)
		ctx := deadline(t)
		first := publishing(ctx, h, payload(0)) // while it is inserted, the others gather
		var others []<-chan error
		for range 8 { // 1 s each
			others = append(others, publishing(ctx, h, Message{Payload: bytes.Repeat([]byte("x"), 200_000)}))
		}
		require.NoError(t, mysqltest.Receive(t, first))
		unknown := 0 // the time may end during a COMMIT
		for _, published := range others {
			if err := mysqltest.Receive(t, published); errors.Is(err, notify.ErrUnknown) {
				unknown++
			} else {
				require.NoError(t, err)
			}
		}
		_, err = h.Publish(ctx, slices.Repeat([]Message{{Payload: bytes.Repeat([]byte("x"), 200_000)}}, 9)...)
		require.ErrorContains(t, err, "take longer than 6.5s")
		_, err = h.Publish(ctx, payload(1))
		require.NoError(t, err)
		require.Condition(t, func() bool { n := count(t, direct, "x"); return 10-unknown <= n && n <= 10 })
	})
}
