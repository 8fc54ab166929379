package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// The help is the first page that a user sees. With MQNOTIFY_UPDATE=1 the test writes its golden file.
func TestHelp(t *testing.T) {
	t.Parallel()
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

// Every command has examples. docs/help_test.go runs them.
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

// A shell completes the values of flags and arguments, and never with names of files.
func TestFlagsComplete(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"consume orders --mode ":   "auto handshake poll",
		"tail -f orders --mode ":   "auto handshake poll",
		"consume orders --format ": "json payload",
		"consume orders --from ":   "beginning end",
		"consume orders --flag ":   "counter row",
		"produce orders --mode ":   "notify handshake",
		"tail orders --order ":     "arrival strict",
		"bridge orders --from ":    "beginning end",
		"bridge orders --to ":      "",
		"import --into ":           "",
		"init --trigger-form ":     "counter row",
		"init --trigger-on ":       "insert update delete",
		"enqueue --priority ":      "",
		"work --visibility ":       "",
		"work --timeout ":          "",
		"tasks --cancel ":          "",
		"schedule --cron ":         "",
		"ring put ":                "",
		"ring read --after ":       "",
		"capture install --ops ":   "insert update delete",
		"serve ":                   "",
		"serve orders --listen ":   "",
		"grants --role ":           strings.Join(roles, " "),
		"tail --log-level ":        "debug info warn error",
		"tail --log-format ":       "text json",
		"consume --group ":         "",
		"listen ":                  "",
		"notify ":                  "",
		"lock --kind ":             "advisory lease",
		"lock ":                    "",
		"lock -E ":                 "",
		"once --every ":            "hour day week month",
		"once ":                    "",
		"status --id-column ":      "",
		"status ":                  "",
		"tail ":                    "",
	} {
		out := succeed(t, nil, append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(line, " ")...)...)
		got, directive, _ := strings.Cut(out, ":")
		require.Equal(t, want, strings.Join(words(got), " "), line)
		require.Equal(t, "4\n", directive, "%s completes with names of files", line)
	}
	for shell, want := range map[string]string{"bash": "__start_mqnotify", "zsh": "#compdef mqnotify", "fish": "complete -c mqnotify"} { // as in a release
		require.Contains(t, succeed(t, nil, "completion", shell), want)
	}
}

func TestVersion(t *testing.T) {
	require.Regexp(t, `^mqnotify \S+ go1\.\S+\n$`, succeed(t, nil, "--version"))
}

// A wrong command line exits with 2 and says what to type.
func TestUsage(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"nonsense":                              "unknown command",
		"consum":                                "consume",
		"--nonsense":                            "unknown flag",
		"init --nonsense":                       "unknown flag",
		"produce":                               "TOPIC is missing",
		"produce t x --mode fast":               "notify or handshake",
		"produce t x --batch 0":                 "1 or more",
		"produce t x --header novalue":          "name=value",
		"produce t x --header =novalue":         "name=value",
		"consume":                               "TOPIC is missing",
		"consume a b":                           "one TOPIC only",
		"consume -- b":                          "TOPIC is missing",
		"consume a b -- c":                      "one TOPIC only",
		"consume t --from nonsense":             "beginning, end, last N, an id",
		"consume t --from -1":                   "beginning, end, last N, an id",
		"consume t --format xml":                "json, payload, or a Go template",
		"consume t --format {{.ID":              "unclosed action",
		"consume t --mode fast":                 "auto, handshake or poll",
		"tail -f t --mode fast":                 "handshake or poll",
		"tail t --mode poll":                    "give -f too",
		"listen":                                "NAME is missing",
		"listen -- true":                        "NAME is missing",
		"listen t --limit -1":                   "0 or more",
		"listen t --json -- true":               "--json",
		"notify":                                "NAME is missing",
		"notify a b c":                          "one PAYLOAD only",
		"notify a " + strings.Repeat("x", 8001): "the limit is 8000",
		"lock":                                  "NAME is missing",
		"lock x":                                "give the command to run after --",
		"lock x --":                             "give the command to run after --",
		"consume x --group g --":                "give the command to run after --",
		"listen x --":                           "give the command to run after --",
		"lock x y -- true":                      "one NAME only",
		"lock x --kind mutex -- true":           "advisory or lease",
		"lock x --timeout -1s -- true":          "0s or more",
		"lock x --ttl 1s -- true":               "--kind lease",
		"lock x -E 256 -- true":                 "0 to 255",
		"lock x --kind lease --ttl 0s -- true":  "TTL of 0s: give",
		"lock x --kind lease --ttl -1s -- true": "TTL of -1s: give",
		"lock x --kind lease --ttl 1ms -- true": "TTL of 1ms: give",
		"lock " + strings.Repeat("x", 256) + " -- true": "the limit is 255",
		"once":                       "KEY is missing",
		"once x":                     "give the command to run after --",
		"once x --every 0s -- true":  "interval of 0s: give",
		"once x --every -1h -- true": "interval of -1h0m0s: give",
		"once x --reset -- true":     "runs nothing",
		"once x --reset --every 1h":  "runs nothing",
		"once x -E -1 -- true":       "0 to 255",
		"once " + strings.Repeat("x", 256) + " -- true":    "the limit is 255",
		"consume t --flag maybe":                           "counter or row",
		"consume t --limit -1":                             "0 or more",
		"consume t --limit x":                              "--limit",
		"consume t --attempts -1 -- true":                  "0 or more",
		"consume t --attempts 2":                           "-- COMMAND",
		"consume t --timeout 2s":                           "-- COMMAND",
		"consume t --timeout -2s -- true":                  "negative",
		"consume t --format payload -- true":               "--format",
		"consume t --reset":                                "Group",
		"consume t --grace -1s":                            "negative",
		"tail":                                             "TABLE is missing",
		"tail a b":                                         "one TABLE only",
		"tail t -n -1":                                     "0 or more",
		"tail t --order random":                            "arrival or strict",
		"flag":                                             "TABLE is missing",
		"grants":                                           "TOPIC is missing",
		"capture":                                          "install, snapshot, status, repair or remove",
		"capture orders":                                   "unknown command",
		"capture install":                                  "TABLE is missing",
		"capture install t --ops truncate":                 "insert, update or delete",
		"capture install t --patience -1s":                 "negative",
		"capture remove":                                   "TABLE is missing",
		"capture status a b":                               "at most 1 arg",
		"serve":                                            "TOPIC is missing",
		"serve t --listen :8080":                           "no tokens are given",
		"serve t --listen nonsense":                        "host:port",
		"serve t --tls-cert x":                             "give both",
		"serve " + strings.Repeat("x", 65):                 "64",
		"status":                                           "TOPIC is missing",
		"status a b":                                       "one TOPIC only",
		"status " + strings.Repeat("x", 65):                "64",
		"demo x":                                           "unknown command",
		"demo --count 0":                                   "1 or more",
		"tail t --log-level loud":                          "debug, info, warn or error",
		"tail t --log-format xml":                          "text or json",
		"consume " + strings.Repeat("x", 65):               "64",
		"tail " + strings.Repeat("x", 65):                  "64",
		"listen a " + strings.Repeat("x", 256):             "the limit is 255",
		"notify " + strings.Repeat("x", 256):               "the limit is 255",
		"produce " + strings.Repeat("x", 65):               "64",
		"tail t --id-column " + strings.Repeat("x", 65):    "64",
		"grants --role worker,tailer":                      "TOPIC is missing",
		"init --ordered":                                   "--queue",
		"init --print --queue q":                           "--print",
		"enqueue":                                          "QUEUE is missing",
		"enqueue q x --batch 0":                            "1 or more",
		"enqueue q x --batch -1":                           "--batch -1: 1 or more",
		"enqueue q x --retries -1":                         "0 or more",
		"enqueue q x --delay -1s":                          "0 or more",
		"enqueue q x --at tomorrow":                        "2026-01-31T08:00:00Z",
		"enqueue q x --at 2031-01-01T00:00:00Z --delay 1s": "one of them",
		"enqueue q --unique k":                             "one PAYLOAD",
		"enqueue q x y --unique k":                         "one PAYLOAD",
		"work":                                             "QUEUE is missing",
		"work q":                                           "give the command to run after --",
		"work q r -- true":                                 "one QUEUE only",
		"work q --concurrency 0 -- true":                   "1 or more",
		"work q --concurrency -1 -- true":                  "--concurrency -1: 1 or more",
		"work q --visibility 0 -- true":                    "more than 0",
		"work q --visibility -1s -- true":                  "more than 0",
		"work q --lapses 1 -- true":                        "2 or more",
		"work q --backoff -1s -- true":                     "0 or more",
		"work q --timeout -1s -- true":                     "--timeout -1s: 0 or more",
		"tasks":                                            "QUEUE is missing",
		"tasks q --limit 0":                                "1 or more",
		"tasks q --limit -1":                               "--limit -1: 1 or more",
		"tasks q --retry x":                                "no task's id",
		"tasks q --cancel -1":                              "no task's id",
		"tasks q --retry 1 --cancel 2":                     "one of them",
		"tasks q --retry 1 --state dead":                   "--state is for lists",
		"tasks q --prune 24h --state dead":                 "--state is for lists",
		"tasks q --retry-dead --state failed":              "--state is for lists",
		"tasks q --count --state dead":                     "--state is for lists",
		"tasks q --cancel 1 --state=":                      "--state is for lists",
		"tasks q --prune 24h --limit 5":                    "--limit and --after are for lists",
		"tasks q --retry-dead --after 5":                   "--limit and --after are for lists",
		"tasks q --count --limit 5":                        "--limit and --after are for lists",
		"tasks q --retry=":                                 "give the ids",
		"tasks q --cancel=":                                "give the ids",
		"tasks q --retry 1 --retries -1":                   "0 or more",
		"tasks q --prune -1s":                              "0 or more",
		"dead":                                             "TOPIC is missing",
		"dead t 17":                                        "write list, show, retry or delete",
		"dead t list 17":                                   "list takes no ids",
		"dead t show":                                      "show takes one id",
		"dead t show 1 2":                                  "show takes one id",
		"dead t retry":                                     "give ids, --group, --error, or --all",
		"dead t retry x":                                   "no dead letter's id",
		"dead t delete 1 --all":                            "give ids, or choose",
		"dead t retry --all --limit 5":                     "--limit and --after are for list",
		"dead t --all":                                     "--all is for retry and delete",
		"dead t --limit 0":                                 "1 or more",
		"tasks q --retries 3":                              "--retries is for --retry and --retry-dead",
		"tasks q --cancel 1 --retries 3":                   "--retries is for --retry and --retry-dead",
		"tasks q --prune 1h --retries 3":                   "--retries is for --retry and --retry-dead",
		"tasks q --retry 1 --json":                         "--json is for lists and --count",
		"tasks q --retry-dead --json":                      "--json is for lists and --count",
		"tasks q --cancel 1 --json":                        "--json is for lists and --count",
		"tasks q --prune 1h --json":                        "--json is for lists and --count",
		"init t --trigger-on update":                       "--trigger-on is for --trigger",
		"init t --trigger-form bogus":                      "--trigger-form is for --trigger",
		"init --trigger t --trigger-on=":                   "insert, update or delete",
		"tasks q --dead":                                   "--state dead",
		"enqueue " + strings.Repeat("x", 65) + " y":        "64",
		"tasks " + strings.Repeat("x", 65):                 "64",
		"schedule":                                         "QUEUE is missing",
		"schedule q n":                                     "--cron, or --remove",
		"schedule q --cron @daily":                         "name the recurring task",
		"schedule q --remove":                              "name the recurring task",
		"schedule q --priority 1":                          "name the recurring task",
		"schedule q n --json":                              "--json is for lists",
		"schedule q n --remove --cron @daily":              "one of them",
		"schedule q n --remove --unique k":                 "nothing else",
		"schedule q n --remove x":                          "nothing else",
		"schedule q n x y --cron @daily":                   "one PAYLOAD only",
		"schedule q n --cron @daily --retries -1":          "0 or more",
		"schedule " + strings.Repeat("x", 65):              "64",
		"ring":                                             "create, put or read",
		"ring log":                                         "unknown command",
		"ring create":                                      "NAME is missing",
		"ring create r":                                    "--size: say how many",
		"ring create r --size 0":                           "the ring \"r\" of 0 entries: from 1",
		"ring create r --size -1":                          "the ring \"r\" of -1 entries: from 1",
		"ring put":                                         "NAME is missing",
		"ring put " + strings.Repeat("x", 65):              "64",
		"ring read":                                        "NAME is missing",
		"ring read a b":                                    "one NAME only",
		"ring read r -n -1":                                "0 or more",
		"ring read r --after -1":                           "--after",
		"ring read r --after 1 -n 1":                       "one of them",
		"bridge":                                           "TOPIC is missing",
		"bridge t --to stdout":                             "--group: name",
		"bridge t --group g":                               "--to: give a URL",
		"bridge t --group g --to ftp://host":               "unknown scheme",
		"bridge t --group g --to nats://h?x=1":             "unknown parameter",
		"bridge t --group g --to stdout --from nonsense":   "beginning, end, last N, an id",
		"bridge t --group g --to stdout --mode fast":       "auto, handshake or poll",
		"bridge t --group g --to stdout --in-flight -1":    "0 or more",
		"bridge t --group g --to stdout --attempts 0":      "1 or more",
		"bridge t --to stdout --group " + strings.Repeat("x", 129): "128",
	} {
		r := start(t, []string{envDSN + "=me@tcp(127.0.0.1:1)/db"}, strings.NewReader(""), strings.Fields(line)...).wait(t)
		require.Equal(t, exitUsage, r.code, "%s\n%s", line, r.err)
		require.Contains(t, r.err, want, line)
		require.Contains(t, r.err, "\nusage: mqnotify ", line)
		require.Empty(t, r.out)
	}
}

// With --log-format json, the logs and the last error are lines of JSON.
func TestLogFormat(t *testing.T) {
	message := fail(t, exitFailed, nil, "tail", "t", "--log-format", "json")
	require.Regexp(t, `^\{"time":"[^"]+","level":"ERROR","msg":"no server is named[^"]+"\}\n$`, message)
}

// A missing command is an error before any message is read.
func TestCommandNotFound(t *testing.T) {
	require.Contains(t, fail(t, exitFailed, nil, "consume", "t", "--", "no-such-command"), "no-such-command")
}

// Every command that help shows has a manual page.
func TestMan(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	succeed(t, nil, "man", dir)
	for _, cmd := range newRoot(newApp(streams{})).Commands() {
		page, err := os.ReadFile(filepath.Join(dir, "mqnotify-"+cmd.Name()+".1"))
		if cmd.Hidden {
			require.ErrorIs(t, err, os.ErrNotExist)
			continue
		}
		require.NoError(t, err)
		require.Contains(t, string(page), cmd.Short[1:])
	}
}
