package loopback

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Only this machine's own name and addresses count.
func TestIs(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "localhost:1": true, "[::1]:1": true, "127.5.5.5:1": true, "localhost": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "192.0.2.1:1": false, "example.com:1": false, "localhost.example.com:1": false, "nonsense": false,
	} {
		assert.Equal(t, want, Is(address), address)
	}
}
