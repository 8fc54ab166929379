//go:build nodemo

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoDemo(t *testing.T) {
	require.Contains(t, fail(t, exitFailed, nil, "demo"), "-tags nodemo")
}
