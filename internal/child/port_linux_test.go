package child

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClaim(t *testing.T) {
	port, err := FreePort()
	require.NoError(t, err)
	require.False(t, claim(port), "it is another's")
}
