package server_test

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/server"
)

// late is a context that ends shortly after its deadline, as may happen on a busy machine.
type late struct {
	context.Context //nolint:containedctx // it is one
	deadline        time.Time
}

func (l late) Deadline() (time.Time, bool) { return l.deadline, true }

// The error of a connection that is not made by the deadline comes after its context has ended.
func TestConnectAtTheDeadline(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	config := mysql.NewConfig()
	config.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, os.ErrDeadlineExceeded }
	connector, err := server.NewConnector(config)
	require.NoError(t, err)
	_, err = connector.Connect(late{ctx, time.Now()})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Error(t, ctx.Err())
}
