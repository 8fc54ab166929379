package main

import (
	"context"
	"database/sql"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	wait "github.com/mqnotify/mqnotify/internal/waiting"
)

func TestMain(m *testing.M) {
	heedHangups()
	wait.Unused = 2 * time.Second
	mysqltest.Main(m)
}

// heedHangups gives SIGHUP its default action in the processes that tests start. Under `nohup ./test` they would otherwise
// ignore SIGHUP, and mqnotify does not forward a signal that it was started to ignore.
func heedHangups() {
	if signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
}

// patience is how long a test waits for an event.
const patience = 2 * time.Minute

// environment returns the environment of a command: the database, and nothing of this machine that could change how it
// connects.
func environment(tb testing.TB, config *mysql.Config) []string {
	tb.Helper()
	environ := []string{"HOME=" + tb.TempDir(), "PATH=" + os.Getenv("PATH")}
	if config != nil {
		environ = append(environ, envDSN+"="+config.FormatDSN())
	}
	return environ
}

// result is the exit code and the output of a command that has ended.
type result struct {
	code     int
	out, err string
}

// mqnotify runs a command line to its end, with stdin.
func mqnotify(tb testing.TB, config *mysql.Config, stdin string, args ...string) result {
	tb.Helper()
	return start(tb, environment(tb, config), strings.NewReader(stdin), args...).wait(tb)
}

// succeed runs a command line that must not fail, and returns its stdout.
func succeed(tb testing.TB, config *mysql.Config, args ...string) string {
	tb.Helper()
	r := mqnotify(tb, config, "", args...)
	require.Equal(tb, exitDone, r.code, "mqnotify %s\n%s", strings.Join(args, " "), r.err)
	return r.out
}

// fail runs a command line that must fail with the code, and returns its stderr.
func fail(tb testing.TB, code int, config *mysql.Config, args ...string) string {
	tb.Helper()
	r := mqnotify(tb, config, "", args...)
	require.Equal(tb, code, r.code, "mqnotify %s\n%s%s", strings.Join(args, " "), r.out, r.err)
	return r.err
}

// running is a command that runs next to the test.
type running struct {
	out, err text
	stop     context.CancelFunc // does what the first Ctrl-C does
	ended    chan struct{}
	code     int
}

func start(tb testing.TB, environ []string, stdin io.Reader, args ...string) *running {
	tb.Helper()
	r := &running{ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	r.stop = cancel
	a := newApp(streams{in: stdin, out: &r.out, err: &r.err, environ: environ})
	go func() {
		defer close(r.ended)
		r.code = a.run(ctx, args)
	}()
	tb.Cleanup(func() {
		cancel()
		<-r.ended
		for line := range strings.Lines(r.err.String()) {
			require.LessOrEqual(tb, strings.Count(line, " topic="), 1, line) // two layers must not both log the topic
		}
	})
	return r
}

// background is start with an environment for the database, and without stdin.
func background(tb testing.TB, config *mysql.Config, args ...string) *running {
	tb.Helper()
	return start(tb, environment(tb, config), strings.NewReader(""), args...)
}

func (r *running) wait(tb testing.TB) result {
	tb.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		tb.Fatalf("the command does not end\n%s%s", r.out.String(), r.err.String())
	}
	return result{r.code, r.out.String(), r.err.String()}
}

// interrupt ends the command as the first Ctrl-C does.
func (r *running) interrupt(tb testing.TB) result {
	tb.Helper()
	r.stop()
	return r.wait(tb)
}

// text is a stream that is written and read at the same time.
type text struct{ mysqltest.Text }

// contains waits until the stream has the text.
func (t *text) contains(tb testing.TB, want string) {
	tb.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(t.String(), want); {
		if time.Now().After(deadline) {
			tb.Fatalf("%q is not in the output\n%s", want, t.String())
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-tb.Context().Done():
		}
	}
}

// database makes a database with the topics in it, and returns how to connect and a pool for the test.
func database(tb testing.TB, s *mysqltest.Server, topics ...string) (*mysql.Config, *sqlx.DB) {
	tb.Helper()
	config := s.Database(tb)
	db := open(tb, config)
	require.NoError(tb, schema.Init(tb.Context(), db, topics...))
	return config, db
}

func open(tb testing.TB, config *mysql.Config) *sqlx.DB {
	tb.Helper()
	config = config.Clone()
	config.InterpolateParams = true
	connector, err := mysql.NewConnector(config)
	require.NoError(tb, err)
	db := sqlx.NewDb(sql.OpenDB(connector), "mysql")
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// words splits a text at its spaces and newlines.
func words(text string) []string { return strings.Fields(text) }
