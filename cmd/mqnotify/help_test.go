package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// The first page that a user sees. MQNOTIFY_UPDATE=1 writes it anew.
func TestHelp(t *testing.T) {
	golden := filepath.Join("testdata", "help.txt")
	help := succeed(t, nil, "--help")
	require.Equal(t, help, succeed(t, nil))
	if os.Getenv("MQNOTIFY_UPDATE") != "" {
		require.NoError(t, os.WriteFile(golden, []byte(help), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), help)
}

// Every command has examples, each of which the command line takes.
func TestExamples(t *testing.T) {
	root := newRoot(newApp(streams{}))
	for _, cmd := range append(root.Commands(), root) {
		require.NotEmpty(t, cmd.Example, cmd.CommandPath())
		if cmd != root {
			require.Contains(t, cmd.Example, "  "+cmd.CommandPath(), cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			require.LessOrEqual(t, len(line), 100, line)
		}
	}
}

// Flags have names that tell what they are and take, and complete in a shell.
func TestFlagsComplete(t *testing.T) {
	for line, want := range map[string]string{
		"consume orders --mode ":   "auto gate gtid poll handshake",
		"tail -f orders --mode ":   "auto gate gtid poll handshake",
		"consume orders --format ": "json payload",
		"consume orders --from ":   "beginning end",
		"consume orders --flag ":   "counter row",
		"produce orders --mode ":   "notify handshake",
		"tail orders --order ":     "arrival strict",
		"init --trigger-form ":     "counter row",
		"init --trigger-on ":       "insert update delete",
		"grants --role ":           strings.Join(roles, " "),
		"tail --log-level ":        "debug info warn error",
		"tail --log-format ":       "text json",
		"consume --group ":         "",
		"listen ":                  "",
		"notify ":                  "",
		"keeper --look ":           "",
		"status --id-column ":      "",
		"status ":                  "",
		"tail ":                    "",
	} {
		out := succeed(t, nil, append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(line, " ")...)...)
		got, directive, _ := strings.Cut(out, ":")
		require.Equal(t, want, strings.Join(words(got), " "), line)
		require.Equal(t, "4\n", directive, "%s completes with names of files", line)
	}
	require.Contains(t, succeed(t, nil, "completion", "bash"), "__start_mqnotify")
}

func TestVersion(t *testing.T) {
	require.Regexp(t, `^mqnotify \S+ go1\.\S+\n$`, succeed(t, nil, "--version"))
}

// A mistake exits with 2, and says what to type.
func TestUsage(t *testing.T) {
	for line, want := range map[string]string{
		"nonsense":                           "unknown command",
		"consum":                             "consume",
		"--nonsense":                         "unknown flag",
		"init --nonsense":                    "unknown flag",
		"produce":                            "name the TOPIC",
		"produce t x --mode fast":            "notify or handshake",
		"produce t x --batch 0":              "1 or more",
		"produce t x --header novalue":       "name=value",
		"produce t x --header =novalue":      "name=value",
		"consume":                            "name the TOPIC",
		"consume a b":                        "one TOPIC only",
		"consume -- b":                       "name the TOPIC",
		"consume a b -- c":                   "one TOPIC only",
		"consume t --from nonsense":          "beginning, end, an id",
		"consume t --from -1":                "beginning, end, an id",
		"consume t --format xml":             "json, payload, or a Go template",
		"consume t --format {{.ID":           "unclosed action",
		"consume t --mode fast":              "auto, gate, gtid, poll or handshake",
		"consume t --look 0s":                "more than 0",
		"consume t --mode gate --flag row":   "one reader",
		"tail -f t --mode fast":              "poll or handshake",
		"tail t --mode poll":                 "give -f too",
		"tail t --look 1s":                   "give -f too",
		"listen":                             "name the TOPIC",
		"listen a b":                         "a command to run comes after --",
		"listen t --limit -1":                "0 or more",
		"listen t --look -1s":                "more than 0",
		"listen t --json -- true":            "--json",
		"notify":                             "name the TOPIC",
		"notify a b":                         "one TOPIC only",
		"keeper":                             "name the TOPIC",
		"keeper t --look 0s":                 "more than 0",
		"keeper t --look-min 0s":             "more than 0",
		"keeper t --look-min 2s":             "--look is less, 1s",
		"consume t --flag maybe":             "counter or row",
		"consume t --limit -1":               "0 or more",
		"consume t --limit x":                "--limit",
		"consume t --attempts -1 -- true":    "0 or more",
		"consume t --attempts 2":             "-- COMMAND",
		"consume t --timeout 2s":             "-- COMMAND",
		"consume t --timeout -2s -- true":    "negative",
		"consume t --format payload -- true": "--format",
		"consume t --reset":                  "Group",
		"consume t --grace -1s":              "negative",
		"tail":                               "name the TABLE",
		"tail a b":                           "one TABLE only",
		"tail t -n -1":                       "0 or more",
		"tail t --order random":              "arrival or strict",
		"flag":                               "name the TABLE",
		"grants":                             "name the TOPIC",
		"status":                             "name the TOPIC",
		"status a b":                         "one TOPIC only",
		"status " + strings.Repeat("x", 65):  "64",
		"demo x":                             "unknown command",
		"demo --count 0":                     "1 or more",
		"tail t --log-level loud":            "debug, info, warn or error",
		"tail t --log-format xml":            "text or json",
		"consume " + strings.Repeat("x", 65): "64",
		"tail " + strings.Repeat("x", 65):    "64",
		"listen " + strings.Repeat("x", 65):  "64",
		"notify " + strings.Repeat("x", 65):  "64",
		"keeper " + strings.Repeat("x", 65):  "64",
		"produce " + strings.Repeat("x", 65): "64",
		"tail t --id-column " + strings.Repeat("x", 65): "64",
		"produce t --mode handshake --no-gate":          "--no-gate",
	} {
		r := start(t, []string{envDSN + "=me@tcp(127.0.0.1:1)/db"}, strings.NewReader(""), strings.Fields(line)...).wait(t)
		require.Equal(t, exitUsage, r.code, "%s\n%s", line, r.err)
		require.Contains(t, r.err, want, line)
		require.Contains(t, r.err, "\nusage: mqnotify ", line)
		require.Empty(t, r.out)
	}
}

// Logs and the last error are lines of JSON for who asks for that.
func TestLogFormat(t *testing.T) {
	message := fail(t, exitFailed, nil, "tail", "t", "--log-format", "json")
	require.Regexp(t, `^\{"time":"[^"]+","level":"ERROR","msg":"no server is named[^"]+"\}\n$`, message)
}

// A command that is not there is found out before a message is taken.
func TestCommandNotFound(t *testing.T) {
	require.Contains(t, fail(t, exitFailed, nil, "consume", "t", "--", "no-such-command"), "no-such-command")
}
