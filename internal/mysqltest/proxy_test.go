package mysqltest

import (
	"context"
	"database/sql"
	"net"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
)

// recording returns a copy of cfg, and a channel that holds a value if a connection has sent data since the channel was emptied.
func recording(cfg *mysql.Config) (*mysql.Config, chan struct{}) {
	sent := make(chan struct{}, 1)
	cfg = cfg.Clone()
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return telling{conn, sent}, err
	}
	return cfg, sent
}

type telling struct {
	net.Conn
	sent chan struct{}
}

func (c telling) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	select {
	case c.sent <- struct{}{}:
	default:
	}
	return n, err
}

// sendAndLeave sends a statement and cancels it once it is sent. The frozen proxy keeps the server from answering.
func sendAndLeave(t *testing.T, db *sql.DB, sent chan struct{}, query string) {
	t.Helper()
	for len(sent) > 0 {
		<-sent
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := Result(func() error {
		_, err := db.ExecContext(ctx, query)
		return err
	})
	Await(t, sent, "the statement is sent")
	cancel()
	require.ErrorIs(t, Receive(t, ended), context.Canceled)
}

func TestProxyCut(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		p := s.Proxy(t)
		db := open(t, p.Config(cfg))
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		require.NoError(t, conn.PingContext(t.Context()))

		p.Down()
		require.Error(t, conn.PingContext(t.Context()))
		require.False(t, answers(t, db))
		require.NoError(t, checkUnused(s.pool(t), cfg.DBName, settleTime), "the server notices that its client is gone")

		p.Up()
		require.Eventually(t, func() bool { return answers(t, db) }, patience, tick)
		require.Equal(t, p.Addr(), p.Config(cfg).Addr)
	})
}

// Behind a frozen proxy the server does not notice that its client is gone, so the session stays. The data that was sent
// arrives after the thaw.
func TestProxyFreeze(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		p := s.Proxy(t)
		through, sent := recording(p.Config(cfg))
		db := open(t, through)
		_, err := db.ExecContext(t.Context(), "CREATE TABLE t (id INT)")
		require.NoError(t, err)

		p.Freeze()
		sendAndLeave(t, db, sent, "INSERT INTO t VALUES (1)")
		require.NoError(t, db.Close())
		require.ErrorContains(t, checkUnused(s.pool(t), cfg.DBName, moment), "session")

		p.Thaw()
		require.NoError(t, checkUnused(s.pool(t), cfg.DBName, settleTime))
		require.Equal(t, 1, number(t, open(t, cfg), "SELECT COUNT(*) FROM t"))
	})
}

// Down loses the data that a freeze held back.
func TestProxyDownWhileFrozen(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		p := s.Proxy(t)
		through, sent := recording(p.Config(cfg))
		db := open(t, through)
		_, err := db.ExecContext(t.Context(), "CREATE TABLE t (id INT)")
		require.NoError(t, err)

		p.Freeze()
		sendAndLeave(t, db, sent, "INSERT INTO t VALUES (1)")
		p.Down()
		p.Up()
		require.Eventually(t, func() bool { return answers(t, db) }, patience, tick, "the freeze ended with the connections")
		require.Equal(t, 0, number(t, db, "SELECT COUNT(*) FROM t"))
	})
}

func TestProxyLatency(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		p := s.Proxy(t)
		db := open(t, p.Config(s.Database(t)))
		require.NoError(t, db.PingContext(t.Context()))

		const delay = 100 * time.Millisecond
		p.Latency(delay)
		began := time.Now()
		require.NoError(t, db.PingContext(t.Context()))
		require.GreaterOrEqual(t, time.Since(began), 2*delay, "there and back")

		p.Latency(0)
		require.Eventually(t, func() bool {
			began := time.Now()
			return db.PingContext(t.Context()) == nil && time.Since(began) < delay
		}, patience, 25*time.Millisecond)
	})
}
