package mysqltest

import (
	"bytes"
	"context"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// atOnce is how long the server may take to end the sessions that a Close has closed. A session that was forgotten ends later,
// by its wait in the server or its wait_timeout.
const atOnce = 5 * time.Second

// Tidy makes a database, and checks at the test's end that the test has left nothing behind: no session, running statement or
// lock, and no goroutine of the package pkg, as stacks name it ("/mqnotify/notify."). The test must have closed all that it
// opened.
func (s *Server) Tidy(t *testing.T, pkg string) *mysql.Config {
	t.Helper()
	config := s.Database(t)
	// A goroutine inherits the labels of the one that starts it.
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("test", t.Name())))
	t.Cleanup(func() {
		if !t.Failed() { // a leak would be a consequence of the failure and bury its cause
			s.RequireTidy(t, config, pkg)
		}
	})
	return config
}

// RequireTidy makes Tidy's check of a database that Tidy made. The test must have closed all that it opened.
func (s *Server) RequireTidy(t *testing.T, config *mysql.Config, pkg string) {
	t.Helper()
	if err := s.Unused(t, config, atOnce); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "no goroutine of the test runs", func() bool { return Goroutines(t, pkg) == "" })
}

// Goroutines returns the stacks of the package's goroutines that the test started, if [Server.Tidy] labelled them.
func Goroutines(t *testing.T, pkg string) string {
	t.Helper()
	var all bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&all, 1); err != nil {
		t.Fatal(err)
	}
	var ours []string
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, `"test":"`+t.Name()+`"`) && strings.Contains(stack, pkg) {
			ours = append(ours, stack)
		}
	}
	return strings.Join(ours, "\n\n")
}
