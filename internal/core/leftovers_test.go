package core_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// ours is the name of this package in stacks.
const ours = "/internal/core."

// The test detects what is left behind, so that it can fail.
func TestLeftovers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Tidy(t, ours)
		session, err := core.NewSession(t.Context(), openProcess(t, config), core.SessionOptions{})
		require.NoError(t, err)
		require.Error(t, s.Unused(t, config, tick))
		require.Contains(t, mysqltest.Goroutines(t, ours), "(*Session).keep")
		require.NoError(t, session.Close())
		s.RequireTidy(t, config, ours)
	})
}
