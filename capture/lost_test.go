package capture

import (
	"bytes"
	"context"
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// cutConn is a connection that is lost after a statement that contains a text was sent.
type cutConn struct {
	net.Conn
	at  []byte
	cut func(statement func() error) error
}

func (c *cutConn) Write(p []byte) (int, error) {
	if !bytes.Contains(p, c.at) {
		return c.Conn.Write(p)
	}
	err := c.cut(func() error {
		_, err := c.Conn.Write(p)
		return err
	})
	return len(p), errors.Join(err, c.Close())
}

// SyscallConn lets the driver, and sessions, see whether the connection has ended.
func (c *cutConn) SyscallConn() (syscall.RawConn, error) {
	inner, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.New("no descriptor")
	}
	return inner.SyscallConn()
}

// cutAt makes the connections of a configuration cutConns.
func cutAt(config *mysql.Config, at string, cut func(conn net.Conn, statement func() error) error) {
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &cutConn{conn, []byte(at), func(statement func() error) error { return cut(conn, statement) }}, nil
	}
}

// If the connection is lost while a trigger is made, Install leaves no capture of some of the changes, whether the server has made
// the trigger or still waits.
func TestInstallLosesItsConnection(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		t.Run("made", func(t *testing.T) {
			config := s.Database(t)
			db := open(t, config)
			mysqltest.ExecAll(t, db.Pool(), orders)
			lossy := config.Clone()
			cutAt(lossy, "AFTER UPDATE ON", func(conn net.Conn, statement func() error) error {
				if err := statement(); err != nil {
					return err
				}
				_, err := conn.Read(make([]byte, 1)) // the answer, which is lost
				return err
			})
			_, err := Install(t.Context(), open(t, lossy), "orders", Options{Logger: quiet})
			require.Error(t, err)
			states, err := Status(t.Context(), db, "orders")
			require.NoError(t, err)
			assert.Empty(t, states)
		})
		t.Run("at it", func(t *testing.T) {
			config := s.Database(t)
			db := open(t, config)
			mysqltest.ExecAll(t, db.Pool(), orders)
			tx, err := db.Pool().BeginTx(t.Context(), nil)
			require.NoError(t, err)
			lossy := config.Clone()
			cutAt(lossy, "AFTER INSERT ON", func(_ net.Conn, statement func() error) error {
				if _, err := tx.ExecContext(t.Context(), "INSERT INTO orders (id) VALUES (1)"); err != nil {
					return err
				}
				if err := statement(); err != nil {
					return err
				}
				waitsForTable(t, db, "CREATE TRIGGER")
				return nil
			})
			_, err = Install(t.Context(), open(t, lossy), "orders", Options{Logger: quiet})
			require.Error(t, err)
			require.NoError(t, tx.Commit())
			mysqltest.ExecAll(t, db.Pool(), "DELETE FROM orders") // behind whatever waits for the table
			states, err := Status(t.Context(), db, "orders")
			require.NoError(t, err)
			assert.Empty(t, states)
		})
	})
}
