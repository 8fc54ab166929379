package notify_test

import (
	"bytes"
	"context"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// atOnce is how long the server may take to end the sessions that a Close has closed: less
// than what ends one that was forgotten, its wait in the server or its wait_timeout.
const atOnce = 5 * time.Second

// tidy makes a database in which the test leaves nothing behind: no session, running
// statement or lock, and no goroutine of this package, as soon as all is closed that
// it opened.
func tidy(t *testing.T, s *mysqltest.Server) *mysql.Config {
	t.Helper()
	config := s.Database(t)
	// A goroutine has the labels of the one that started it.
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("test", t.Name())))
	t.Cleanup(func() {
		if !t.Failed() { // a leak is a consequence of it, and would bury the cause
			requireTidy(t, s, config)
		}
	})
	return config
}

// requireTidy is for a database that tidy made, when all is closed.
func requireTidy(t *testing.T, s *mysqltest.Server, config *mysql.Config) {
	t.Helper()
	require.NoError(t, s.Unused(t, config, atOnce))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Empty(c, ourGoroutines(t, t.Name()))
	}, patience, tick)
}

// ourGoroutines are the stacks of goroutines of this package that a test started.
func ourGoroutines(tb testing.TB, test string) string {
	tb.Helper()
	var all bytes.Buffer
	require.NoError(tb, pprof.Lookup("goroutine").WriteTo(&all, 1))
	var ours []string
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, `"test":"`+test+`"`) && strings.Contains(stack, "/mqnotify/notify.") {
			ours = append(ours, stack)
		}
	}
	return strings.Join(ours, "\n\n")
}
