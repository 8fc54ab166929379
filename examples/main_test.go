// Package examples_test runs the examples as processes, as their users do. It runs several processes of each and kills some of
// them.
package examples_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

const (
	// patience limits every wait of a test.
	patience = time.Minute
	// tick is the interval of its polls.
	tick = 25 * time.Millisecond
)

// TestExamples builds examples and tests them: all on the first server, then one on each of the others.
func TestExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("the short form builds no programs; the tests of packages consumer, queue and serve cover what these use")
	}
	arguments := []string{"build", "-ldflags=-s -w"} // links faster
	if info, _ := debug.ReadBuildInfo(); slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		arguments = append(arguments, "-race")
	}
	build := func(t *testing.T, program string) string {
		path := filepath.Join(t.TempDir(), program)
		said, err := exec.CommandContext(t.Context(), "go", append(slices.Clone(arguments), "-o", path, "./"+program)...).CombinedOutput()
		require.NoError(t, err, "%s", said)
		return path
	}
	mysqltest.EachCase(t, []example{
		{"cache", "cache", testCache},
		{"live", "live", testLive},
		{"live in a browser", "live", testLivePage},
		{"mail", "mail", testMail},
		{"outbox", "outbox", testOutbox},
		{"worker", "worker", testWorker},
	}, func(t *testing.T, s *mysqltest.Server, e example) {
		t.Run(e.name, func(t *testing.T) { e.test(t, s, build(t, e.program)) })
	})
}

type example struct {
	name, program string
	test          func(t *testing.T, s *mysqltest.Server, program string)
}

func openDB(tb testing.TB, config *mysql.Config, topics ...string) *notify.DB {
	tb.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	require.NoError(tb, schema.Init(tb.Context(), db.Pool(), topics...))
	return db
}

// process is a running example.
type process struct {
	*exec.Cmd
	tb    testing.TB
	said  mysqltest.Text // its output so far
	ended chan struct{}
}

func start(tb testing.TB, config *mysql.Config, binary string, arguments ...string) *process {
	tb.Helper()
	p := newProcess(tb, binary, arguments...)
	p.Env = append(os.Environ(), "MQNOTIFY_DSN="+config.FormatDSN())
	p.start()
	return p
}

// newProcess returns a process that is not started yet.
func newProcess(tb testing.TB, binary string, arguments ...string) *process {
	tb.Helper()
	p := &process{Cmd: exec.CommandContext(tb.Context(), binary, arguments...), tb: tb, ended: make(chan struct{})}
	p.Stdout, p.Stderr = &p.said, &p.said
	return p
}

func (p *process) start() {
	tb := p.tb
	tb.Helper()
	require.NoError(tb, p.Start())
	go func() {
		defer close(p.ended)
		_ = p.Wait() // code returns the exit code
	}()
	tb.Cleanup(func() {
		_ = p.Process.Kill() // fails if the process has ended
		<-p.ended
		if tb.Failed() {
			tb.Logf("%s:\n%s", p, p.said.String())
		}
	})
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

var servingAt = regexp.MustCompile(`serving url=(\S+)`)

// serve starts an example that serves HTTP on a free port, and also returns its URL.
func serve(tb testing.TB, config *mysql.Config, binary string, arguments ...string) (*process, string) {
	tb.Helper()
	p := start(tb, config, binary, append([]string{"-listen", "127.0.0.1:0"}, arguments...)...)
	var url string
	require.Eventually(tb, func() bool {
		if found := servingAt.FindStringSubmatch(p.said.String()); found != nil {
			url = found[1]
		}
		return url != ""
	}, patience, tick)
	return p, url
}

// says waits until the output of the process contains a text.
func (p *process) says(what string) {
	p.tb.Helper()
	require.Eventually(p.tb, func() bool { return strings.Contains(p.said.String(), what) }, patience, tick, what)
}

// kill kills the process (kill -9).
func (p *process) kill() {
	p.tb.Helper()
	if err := p.Process.Kill(); !errors.Is(err, os.ErrProcessDone) {
		require.NoError(p.tb, err)
	}
	<-p.ended
}

// stop sends SIGTERM, as systemd does. The process must exit with code 0.
func (p *process) stop() {
	p.tb.Helper()
	require.NoError(p.tb, p.Process.Signal(syscall.SIGTERM))
	assert.Zero(p.tb, p.code())
}

// code waits for the end of the process and returns its exit code.
func (p *process) code() int {
	p.tb.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.tb.Fatal("the process does not exit")
	}
	return p.ProcessState.ExitCode()
}

// lapse ends the claims of dead workers, so that the test does not wait for their visibility to expire.
func lapse(tb testing.TB, db *notify.DB) {
	tb.Helper()
	mysqltest.Exec(tb, db.Pool(), "UPDATE mqnotify_task SET state_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE state = 'in progress'")
}

// ask makes a request. An error is one of the connection.
func ask(tb testing.TB, method, url, body string) (status int, answer string, header http.Header, err error) {
	tb.Helper()
	request, err := http.NewRequestWithContext(tb.Context(), method, url, strings.NewReader(body))
	require.NoError(tb, err)
	request.Close = true // an idle connection would leave a goroutine behind
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", nil, err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	return response.StatusCode, strings.TrimSpace(string(read)), response.Header, err
}

// must is ask for a server that is running.
func must(tb testing.TB, method, url, body string) (status int, answer string, header http.Header) {
	tb.Helper()
	status, answer, header, err := ask(tb, method, url, body)
	require.NoError(tb, err)
	return status, answer, header
}
