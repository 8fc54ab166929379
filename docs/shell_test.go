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

// patience is how long a command may take for what it has to do, on a busy machine.
const patience = 2 * time.Minute

// A terminal is a reader who types a page's commands, each when the one before it has
// ended, or in another terminal when that one goes on. All begin where the last one
// that ended has left folder and environment.
type terminal struct {
	dir     string
	environ []string
	said    []*job // by the last block of commands
	on      []*job // what goes on
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

// endless are the subcommands that go on until they are stopped.
var endless = []string{"consume", "tail", "listen", "serve", "work", "bridge", "import"}

// ready is what an endless command says once it is at work; other programs than
// mqnotify print an id, or begin a stream.
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

// start runs a command in a process group of its own, as a terminal does. When it ends
// it leaves its folder and environment behind.
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

// follow returns when the command has ended, or goes on as it should.
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
			t.Fatalf("%s: %s: does not end, nor say that it is at work\n%s", j.at, j.text, &j.out)
		case <-tick.C:
			if j.endless && ready.MatchString(j.out.String()) {
				s.on = append(s.on, j)
				return
			}
		}
	}
}

// left takes over what the command has left behind.
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

// shows waits until one of the last block's commands, or one that goes on, has printed
// what the page shows.
func (s *terminal) shows(t *testing.T, b block) {
	t.Helper()
	wanted := lines(b.text)
	candidates := append(slices.Clone(s.said), s.on...)
	require.NotEmpty(t, candidates, "%s: no command prints this", b.at())
	for deadline := time.Now().Add(patience); ; {
		for _, j := range candidates {
			if wanted.MatchString(j.out.String()) {
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
	t.Fatalf("%s: the page shows\n%s\nand what came is\n%s", b.at(), b.text, &all)
}

// close ends what goes on, as Ctrl-C does. It must not have failed before, and mqnotify
// must end well; other programs end as they do.
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
	endless bool     // it goes on until it is stopped
	others  bool     // other programs than mqnotify are in it
	goTest  []string // the arguments of `go test`, and of no other command
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

// words are a command's, without their quotes.
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

// call notes what a command of the statement is.
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

// What differs from one run to the next, and what a page leaves out.
var (
	varying = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z|\d\d:\d\d:\d\d[\d.]*|\d+(?:\.\d+)?(?:ns|µs|ms|s|m|h| ms| s)\b|\d{2,}(?:[.,]\d+)?`)
	spaces  = regexp.MustCompile(` +`)
)

// lines is a pattern of whole lines that come after each other. Times and numbers of
// two digits and more may be others, spaces more or fewer; "..." is anything, and on a line
// of its own any lines.
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
