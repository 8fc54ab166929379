package mysqltest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
		require.NoError(t, checkUnused(s.pool(t), cfg.DBName, settleTime), "the server sees its client's end")

		p.Up()
		require.Eventually(t, func() bool { return answers(t, db) }, patience, tick)
		require.Equal(t, p.Addr(), p.Config(cfg).Addr)
	})
}

// Through a frozen proxy the server does not see its client's end: the session stays. What was sent arrives
// after the thaw.
func TestProxyFreeze(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		p := s.Proxy(t)
		db := open(t, p.Config(cfg))
		_, err := db.ExecContext(t.Context(), "CREATE TABLE t (id INT)")
		require.NoError(t, err)

		p.Freeze()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // it is sent by then
		defer cancel()
		_, err = db.ExecContext(ctx, "INSERT INTO t VALUES (1)")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, db.Close())
		require.ErrorContains(t, checkUnused(s.pool(t), cfg.DBName, moment), "session")

		p.Thaw()
		require.NoError(t, checkUnused(s.pool(t), cfg.DBName, settleTime))
		require.Equal(t, 1, number(t, open(t, cfg), "SELECT COUNT(*) FROM t"))
	})
}

// A cut through a freeze loses what was held back.
func TestProxyDownWhileFrozen(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		p := s.Proxy(t)
		db := open(t, p.Config(cfg))
		_, err := db.ExecContext(t.Context(), "CREATE TABLE t (id INT)")
		require.NoError(t, err)

		p.Freeze()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // it is sent by then
		defer cancel()
		_, err = db.ExecContext(ctx, "INSERT INTO t VALUES (1)")
		require.ErrorIs(t, err, context.DeadlineExceeded)
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
		}, patience, time.Millisecond)
	})
}
