package child

import (
	"net"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FreePort returns a port only once, and no port on which a process listens.
func TestFreePort(t *testing.T) {
	port, err := FreePort()
	require.NoError(t, err)
	require.True(t, PortIsFree(port))
	listener, err := net.Listen("tcp", loopback(port))
	require.NoError(t, err)
	require.False(t, PortIsFree(port))
	require.NoError(t, listener.Close())
}

// Asking whether a port is free does not take it, and a closed listener's port can be taken again, while the process starts others.
func TestPortBesideForks(t *testing.T) {
	port, err := FreePort()
	require.NoError(t, err)
	var ended atomic.Bool
	var starts sync.WaitGroup
	for range 4 {
		starts.Go(func() {
			for !ended.Load() {
				assert.NoError(t, exec.Command("true").Run())
			}
		})
	}
	tries := 500
	if testing.Short() {
		tries = 100
	}
	for range tries {
		listener, err := Listen("tcp", loopback(port))
		if assert.NoError(t, err) {
			assert.NoError(t, listener.Close())
		}
		other, err := FreePort()
		require.NoError(t, err)
		listener, err = net.Listen("tcp", loopback(other))
		if assert.NoError(t, err) {
			assert.NoError(t, listener.Close())
		}
	}
	ended.Store(true)
	starts.Wait()
}
