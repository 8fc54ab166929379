package child

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// A port is given out once, and one where somebody listens is not.
func TestFreePort(t *testing.T) {
	port, err := FreePort()
	require.NoError(t, err)
	require.True(t, PortIsFree(port))
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	require.NoError(t, err)
	require.False(t, PortIsFree(port))
	require.NoError(t, listener.Close())
}
