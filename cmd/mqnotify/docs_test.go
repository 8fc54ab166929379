package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// The command line accepts every mqnotify command in the pages. The shell splits each line, and the real commands parse it.
func TestCommandsInDocs(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*/*.md")
	require.NoError(t, err)
	pages = append(pages, "../../README.md", "../../CONTRIBUTING.md", "../../docker-compose.yml", "../../packaging/mqnotify@.service")
	commands := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, line := range commandLines(string(text)) {
			for _, args := range split(t, line) {
				commands++
				parses(t, filepath.Base(page), line, args)
			}
		}
	}
	require.Greater(t, commands, 40)
}

// commandLines returns the lines of code that run mqnotify.
func commandLines(text string) (lines []string) {
	fenced, continued := false, ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if !fenced && !strings.HasPrefix(line, "    ") && !strings.HasPrefix(line, "#   ") && continued == "" {
			continue
		}
		line = continued + strings.TrimPrefix(strings.TrimSpace(strings.TrimPrefix(line, "#")), "$ ")
		if rest, more := strings.CutSuffix(line, `\`); more && strings.HasPrefix(line, "mqnotify ") {
			continued = rest
			continue
		}
		continued = ""
		if strings.HasPrefix(line, "mqnotify ") && !strings.Contains(line, "…") && !strings.Contains(line, "[--") {
			lines = append(lines, line)
		}
	}
	return lines
}

// split lets the shell split a line, and returns the arguments of each mqnotify command.
func split(t *testing.T, line string) (all [][]string) {
	t.Helper()
	const script = `mqnotify() { for a; do printf '%s\0' "$a"; done >&3; printf '\1\0' >&3; }; `
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	shell := exec.CommandContext(t.Context(), "/bin/sh", "-c", script+line) //nolint:gosec // the project's own pages
	shell.Env = []string{"PATH=/nowhere"}
	shell.Dir = t.TempDir()
	shell.ExtraFiles = []*os.File{write}
	require.NoError(t, shell.Start())
	require.NoError(t, write.Close())
	written, err := io.ReadAll(read)
	require.NoError(t, err)
	_ = shell.Wait() // fails, because the shell finds no other programs
	for command := range strings.SplitSeq(strings.TrimSuffix(string(written), "\x01\x00"), "\x01\x00") {
		if command != "" {
			all = append(all, strings.Split(strings.TrimSuffix(command, "\x00"), "\x00"))
		}
	}
	require.NotEmpty(t, all, "%s: the shell runs no mqnotify command", line)
	return all
}

func parses(t *testing.T, page, line string, args []string) {
	t.Helper()
	root := newRoot(newApp(streams{}))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	cmd, rest, err := root.Find(args)
	require.NoError(t, err, "%s: %s", page, line)
	cmd.InitDefaultHelpFlag()
	err = cmd.ParseFlags(rest)
	if err == pflag.ErrHelp { //nolint:errorlint // pflag returns it unwrapped
		return
	}
	require.NoError(t, err, "%s: %s", page, line)
	if cmd != root {
		require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), "%s: %s", page, line)
	}
}
