package queue

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// host is a host whose connections can vanish silently.
type host struct {
	before []byte // with the first packet that has this, which is not sent any more
	gone   atomic.Bool
	sent   atomic.Int64 // packets
	mu     sync.Mutex
	open   []net.Conn
}

// newHost returns the configuration of a host's clients. Its connections are closed at the test's end.
func newHost(tb testing.TB, config *mysql.Config, before string) (*host, *mysql.Config) {
	tb.Helper()
	h := &host{before: []byte(before)}
	config = config.Clone()
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if h.gone.Load() {
			return nil, errors.New("the network is unreachable")
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.open = append(h.open, conn)
		return &hostConn{conn.(*net.TCPConn), h}, nil
	}
	tb.Cleanup(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, conn := range h.open {
			_ = conn.Close()
		}
	})
	return h, config
}

type hostConn struct {
	*net.TCPConn
	host *host
}

func (c *hostConn) Write(p []byte) (int, error) {
	if len(c.host.before) > 0 && bytes.Contains(p, c.host.before) {
		c.host.gone.Store(true)
	}
	if c.host.gone.Load() {
		return len(p), nil
	}
	c.host.sent.Add(1)
	return c.TCPConn.Write(p)
}

func (c *hostConn) Close() error {
	if c.host.gone.Load() { // the server is not told
		return c.SetDeadline(time.Now())
	}
	return c.TCPConn.Close()
}

// If a worker's host vanishes between the two packets of a transaction, rows stay locked, and
// other workers skip them, until the server ends the session.
func TestHostVanishesBetweenPackets(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, c := range map[string]struct{ before, state string }{
			"claim":   {"SET state = 'in progress'", "'ready', state_at = DEFAULT"},
			"promote": {"SET state = 'ready', claim_order", "'failed', state_at = '2020-01-01'"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db, config := database(t, s)
				enqueue(t, newQueue(t, db, Options{}), "1", "2", "3")
				mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state = "+c.state)
				host, vanishing := newHost(t, config, c.before)
				w, err := newWorker(newQueue(t, openConfig(t, vanishing), Options{}), WorkerOptions{Batch: 3})
				require.NoError(t, err)
				assert.Equal(t, 30*time.Second, w.idle)
				w.idle = 10 * time.Second
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_ = w.run(ctx, func(context.Context, Task) error { return nil }) // of what the network makes
				}()
				eventually(t, host.gone.Load, "it does not vanish")
				var got collected
				work(t, newQueue(t, openConfig(t, config), Options{}), WorkerOptions{PollInterval: time.Hour}, got.handle)
				got.waitFor(t, "1", "2", "3")
				stop()
				<-ended
			})
		}
	})
}

// Such rows stay locked at most as long as a claim holds, or half a minute.
func TestIdleTimeout(t *testing.T) {
	for visibility, want := range map[time.Duration]time.Duration{
		time.Second: 30 * time.Second, time.Minute: time.Minute, maxDelay: 8 * time.Hour,
	} {
		assert.Equal(t, want, idleTimeout(visibility))
	}
}

// A worker that finds tasks locked by another session tries less and less often, and claims them
// soon after they are free.
func TestLockedTasks(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, state := range map[string]string{
			"ready":   "'ready', state_at = DEFAULT",
			"overdue": "'failed', state_at = '2020-01-01'",
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db, config := database(t, s)
				install(t, db)
				enqueue(t, newQueue(t, db, Options{}), "locked")
				mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state = "+state)
				tx, err := db.Pool().BeginTxx(t.Context(), nil)
				require.NoError(t, err)
				defer func() { _ = tx.Rollback() }()
				_, err = tx.ExecContext(t.Context(), "UPDATE mqnotify_task SET priority = 1")
				require.NoError(t, err)
				host, config := newHost(t, config, "")
				var got collected
				idleWorker(t, db, config, WorkerOptions{}, got.handle)
				window := mysqltest.Size(2*time.Second, 4*time.Second, 4*time.Second)
				few := int64(15 * window / time.Second)
				sent := few
				for range 10 { // the waits grow
					if sent < few {
						break
					}
					before := host.sent.Load()
					<-time.After(window)
					sent = host.sent.Load() - before
					t.Logf("%d packets in %v", sent, window)
				}
				assert.Less(t, sent, few, "a few every second")

				require.NoError(t, tx.Rollback())
				got.waitFor(t, "locked")
			})
		}
	})
}
