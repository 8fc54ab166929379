package docs

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"mvdan.cc/sh/v3/syntax"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// patience is how long a command may take on a busy machine.
const patience = 2 * time.Minute

// A terminal stands for a reader who types a page's commands. It starts each command when the previous one has ended, or, as in
// another terminal, when the previous one keeps running. Each command begins with the folder and the environment that the last
// ended command has left.
type terminal struct {
	dir     string
	environ []string
	said    []*job // the commands of the last block
	on      []*job // the commands that keep running
}

// job is a command that was typed.
type job struct {
	statement
	at    string
	cmd   *exec.Cmd
	out   mysqltest.Text
	ended chan struct{}
	err   error
}

// endless are the subcommands that run until they are stopped.
var endless = []string{"consume", "tail", "listen", "serve", "work", "bridge", "import"}

// ready matches the output of an endless command that is at work. Other programs than mqnotify print an id or begin a stream.
var ready = regexp.MustCompile(`(?:msg="?|INFO )(waiting|waits for|listening|standing by|serving|importing)|(?m:^(\d+|retry: .*)$)`)

// block types a block's commands.
func (s *terminal) block(t *testing.T, b block, replace func(string) string) {
	t.Helper()
	if !b.given {
		s.said = nil
	}
	for _, statement := range statements(t, b) {
		if statement.goTest != nil {
			exists(t, b.at(), statement.goTest)
			continue
		}
		statement.text = replace(statement.text)
		j := s.start(t, statement)
		j.at = b.at()
		if !b.given {
			s.said = append(s.said, j)
		}
		s.follow(t, j)
	}
}

// start runs a command in a process group of its own, as a terminal does. When the command ends, it writes its folder and
// environment to a file.
func (s *terminal) start(t *testing.T, what statement) *job {
	t.Helper()
	const leave = "\nstatus=$?; { pwd; env -0; } >\"$LEFT\" 2>/dev/null; exit $status"
	j := &job{statement: what, ended: make(chan struct{})}
	left, err := os.CreateTemp(t.TempDir(), "left")
	require.NoError(t, err)
	require.NoError(t, left.Close())
	j.cmd = exec.CommandContext(t.Context(), "bash", "-c", j.text+leave) //nolint:gosec // the project's own pages
	j.cmd.Dir = s.dir
	j.cmd.Env = append(slices.Clone(s.environ), "LEFT="+left.Name())
	j.cmd.Stdout, j.cmd.Stderr = &j.out, &j.out
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	j.cmd.Cancel = func() error { return syscall.Kill(-j.cmd.Process.Pid, syscall.SIGKILL) }
	j.cmd.WaitDelay = 30 * time.Second
	require.NoError(t, j.cmd.Start())
	go func() {
		defer close(j.ended)
		j.err = j.cmd.Wait()
	}()
	return j
}

// follow returns when the command has ended, or when it is endless and at work.
func (s *terminal) follow(t *testing.T, j *job) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for {
		select {
		case <-j.ended:
			require.NoError(t, j.err, "%s: %s\n%s", j.at, j.text, &j.out)
			s.left(t, j)
			return
		case <-late:
			t.Fatalf("%s: %s: has neither ended nor reported that it is at work\n%s", j.at, j.text, &j.out)
		case <-tick.C:
			if j.endless && ready.MatchString(j.out.String()) {
				s.on = append(s.on, j)
				return
			}
		}
	}
}

// left takes over the folder and environment that the command has left.
func (s *terminal) left(t *testing.T, j *job) {
	t.Helper()
	name := ""
	for _, pair := range j.cmd.Env {
		if value, is := strings.CutPrefix(pair, "LEFT="); is {
			name = value
		}
	}
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	if dir, environ, whole := strings.Cut(string(text), "\n"); whole {
		s.dir = dir
		s.environ = slices.DeleteFunc(strings.Split(strings.TrimSuffix(environ, "\x00"), "\x00"), func(pair string) bool {
			return strings.HasPrefix(pair, "LEFT=")
		})
	}
}

// logLine is a line of a command's log, which may come between two lines of its output.
var logLine = regexp.MustCompile(`(?m)^time=.*\n`)

// shows waits until a command of the last block, or one that keeps running, has printed what the page shows.
func (s *terminal) shows(t *testing.T, b block) {
	t.Helper()
	wanted := lines(b.text)
	candidates := append(slices.Clone(s.said), s.on...)
	require.NotEmpty(t, candidates, "%s: no command prints this", b.at())
	for deadline := time.Now().Add(patience); ; {
		for _, j := range candidates {
			if out := j.out.String(); wanted.MatchString(out) || wanted.MatchString(logLine.ReplaceAllString(out, "")) {
				return
			}
		}
		if time.Now().After(deadline) {
			break
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	var all strings.Builder
	for _, j := range candidates {
		all.WriteString("$ " + j.text + "\n" + j.out.String())
	}
	t.Fatalf("%s: the page shows\n%s\nbut the commands printed\n%s", b.at(), b.text, &all)
}

// close sends Ctrl-C to the commands that keep running. None may have failed before, and those of mqnotify alone must then exit
// with 0. Commands with other programs may exit with any status.
func (s *terminal) close(t *testing.T) {
	t.Helper()
	for _, j := range slices.Backward(s.on) {
		alive := false
		select {
		case <-j.ended:
		default:
			alive = true
			require.NoError(t, syscall.Kill(-j.cmd.Process.Pid, syscall.SIGINT))
		}
		select {
		case <-j.ended:
			if !alive || !j.others {
				require.NoError(t, j.err, "%s: %s\n%s", j.at, j.text, &j.out)
			}
		case <-time.After(patience):
			t.Errorf("%s: %s: does not end after Ctrl-C\n%s", j.at, j.text, &j.out)
		}
	}
	s.on = nil
}

// statement is a command as a reader types it: a line, or several that belong together.
type statement struct {
	text    string
	endless bool     // it runs until it is stopped
	others  bool     // it runs other programs than mqnotify
	goTest  []string // the arguments, if it is `go test`
}

func statements(t *testing.T, b block) (all []statement) {
	t.Helper()
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(b.text), b.at())
	require.NoError(t, err, b.at())
	for _, s := range file.Stmts {
		one := statement{text: b.text[s.Pos().Offset():s.End().Offset()]}
		syntax.Walk(s, func(n syntax.Node) bool {
			if call, is := n.(*syntax.CallExpr); is {
				one.call(words(call))
			}
			return true
		})
		all = append(all, one)
	}
	return all
}

// words returns a command's words without their quotes.
func words(call *syntax.CallExpr) (all []string) {
	for _, arg := range call.Args {
		var word strings.Builder
		syntax.Walk(arg, func(n syntax.Node) bool {
			switch n := n.(type) {
			case *syntax.Lit:
				word.WriteString(n.Value)
			case *syntax.SglQuoted:
				word.WriteString(n.Value)
			}
			return true
		})
		all = append(all, word.String())
	}
	return all
}

// call records in the statement what one of its commands is.
func (s *statement) call(words []string) {
	if len(words) < 2 {
		return
	}
	s.others = s.others || words[0] != "mqnotify"
	has := func(word string) bool { return slices.Contains(words, word) }
	switch words[0] {
	case "mqnotify":
		s.endless = s.endless || slices.Contains(endless, words[1]) && !has("--stop-at-end")
	case "tail":
		s.endless = s.endless || has("-F")
	case "curl":
		s.endless = s.endless || has("-N")
	case "go":
		s.endless = s.endless || has("run")
		if has("test") {
			s.goTest = words[1:]
		}
	}
}

// Text that differs between runs, and spaces.
var (
	varying = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z|\d\d:\d\d:\d\d[\d.]*|\d+(?:\.\d+)?(?:ns|µs|ms|s|m|h| ms| s)\b|\d{2,}(?:[.,]\d+)?`)
	spaces  = regexp.MustCompile(` +`)
)

// lines returns a pattern of these whole lines, one after another. Times and numbers of two or more digits may differ, and so
// may the number of spaces. "..." matches any text, and on a line of its own any lines.
func lines(text string) *regexp.Regexp {
	var all strings.Builder
	for line := range strings.Lines(strings.TrimSpace(text)) {
		line = strings.TrimSpace(line)
		if line == "..." || line == "" {
			all.WriteString(`(?:.*\n)*?`)
			continue
		}
		pattern, at := "", 0
		for _, found := range varying.FindAllStringIndex(line, -1) {
			pattern += regexp.QuoteMeta(line[at:found[0]]) + `[-\dTZ:.,µnmsh]+(?: ms| s)?`
			at = found[1]
		}
		pattern += regexp.QuoteMeta(line[at:])
		pattern = strings.NewReplacer(regexp.QuoteMeta("..."), ".*", "…", ".*").Replace(pattern)
		all.WriteString(`[ \t]*` + spaces.ReplaceAllString(pattern, " +") + ` *\n`)
	}
	return regexp.MustCompile(`(?m)^` + all.String())
}
