package docs

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"mvdan.cc/sh/v3/syntax"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The command line accepts every example of the help: none exits with the status of a wrong command line. The server that they
// connect to does not exist.
func TestHelpExamples(t *testing.T) {
	t.Parallel()
	bin, err := build()
	require.NoError(t, err)
	run := func(line string) (said string, status int) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-c", line)
		cmd.Dir = t.TempDir()
		cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "HOME=" + cmd.Dir, "MQNOTIFY_DSN=user@tcp(127.0.0.1:1)/shop"}
		out, err := cmd.CombinedOutput()
		require.True(t, err == nil || cmd.ProcessState.Exited(), "%s: %v", line, err)
		return string(out), cmd.ProcessState.ExitCode()
	}
	const usage = 2
	_, status := run("mqnotify consume")
	require.Equal(t, usage, status, "a wrong command line")

	tried := 0
	command := regexp.MustCompile(`(?m)^  ([a-z]+)  `)
	var try func(path string)
	try = func(path string) {
		help, _ := run(path + " --help")
		_, examples, _ := strings.Cut(help, "\nExamples:\n")
		examples, _, _ = strings.Cut(examples, "\n\n")
		script, err := syntax.NewParser().Parse(strings.NewReader(examples), path)
		require.NoError(t, err, path)
		syntax.Walk(script, func(node syntax.Node) bool {
			if call, is := node.(*syntax.CallExpr); is && len(call.Args) > 0 && call.Args[0].Lit() == "mqnotify" {
				line := examples[call.Pos().Offset():call.End().Offset()]
				said, status := run(line)
				assert.NotEqual(t, usage, status, "%s: %s", line, said)
				tried++
			}
			return true
		})
		if _, commands, has := strings.Cut(help, "\nAvailable Commands:\n"); has {
			commands, _, _ = strings.Cut(commands, "\n\n")
			for _, name := range command.FindAllStringSubmatch(commands, -1) {
				try(path + " " + name[1])
			}
		}
	}
	try("mqnotify")
	require.Greater(t, tried, 50)
}

// build builds the command once and returns its folder.
var build = sync.OnceValues(func() (string, error) {
	folder, err := mysqltest.Folder()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(folder, "bin")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin+"/", "./cmd/mqnotify")
	build.Dir = root
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, said)
	}
	return bin, nil
})
