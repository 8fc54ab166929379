//go:build nodemo

package demo

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStartWithoutEngine(t *testing.T) {
	e, err := Start(context.Background())
	require.ErrorIs(t, err, ErrNotBuiltIn)
	require.Nil(t, e)
	require.NoError(t, e.Close())
}
