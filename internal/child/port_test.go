package child

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// FreePort returns a port only once, and no port on which a process listens.
func TestFreePort(t *testing.T) {
	port, err := FreePort()
	require.NoError(t, err)
	require.True(t, PortIsFree(port))
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	require.NoError(t, err)
	require.False(t, PortIsFree(port))
	require.NoError(t, listener.Close())
}
