//go:build unix

package bridge

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The destination is a program that answers each line with its id. It stores each topic in a file of its own.
func TestExec(t *testing.T) {
	mysqltest.Once(t)
	folder := t.TempDir()
	script := filepath.Join(folder, "store.sh")
	require.NoError(t, os.WriteFile(script, []byte(`while IFS= read -r line; do
  id=${line#*:}; id=${id%%,*}
  while [ -e "$1.frozen" ]; do sleep 0.05; done
  if [ "${#line}" -gt 500000 ]; then echo "refuse $id too long"; continue; fi
  printf '%s\n' "$line" >> "$1"
  echo "$id"
done
`), 0o600))
	conform(t, target{
		url:   func(topic string) string { return "exec:sh%20" + script + "%20" + filepath.Join(folder, topic) },
		read:  func(t *testing.T, topic string) []stored { return readLines(t, filepath.Join(folder, topic)) },
		large: 600_000,
		freeze: func(topic string) func() {
			flag := filepath.Join(folder, topic+".frozen")
			require.NoError(t, os.WriteFile(flag, nil, 0o600))
			return func() { require.NoError(t, os.Remove(flag)) }
		},
		held: 5000,
	})
}

// A program that does not exist, or that breaks the protocol, ends the bridge. A program that dies is started again.
func TestExecFails(t *testing.T) {
	mysqltest.Once(t)
	parse := func(url string) *Destination {
		d, err := Parse(url, "t")
		require.NoError(t, err)
		return d
	}
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	for _, program := range []string{"no-such-program", plain, plain + "-no", plain + "/no", filepath.Dir(plain)} {
		_, err := parse("exec:" + program).Open(t.Context())
		require.ErrorAs(t, err, new(*PermanentError), program)
	}
	for url, stops := range map[string]bool{"exec:cat": true, "exec:true": false} {
		sink, err := parse(url).Open(t.Context())
		require.NoError(t, err)
		_, err = sink.Send(t.Context(), messages("t", 1, 3))
		if stops {
			require.ErrorAs(t, err, new(*PermanentError))
		} else {
			requireTransient(t, err)
		}
		require.NoError(t, sink.Close())
	}
}

// A program that does not start because its file is being written, or because the system lacks something, may start later.
func TestExecStartsLater(t *testing.T) {
	mysqltest.Once(t)
	path := filepath.Join(t.TempDir(), "program.sh")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700))
	d, err := Parse("exec:"+path, "t")
	require.NoError(t, err)
	writing, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer writing.Close()
	sink, err := d.Open(t.Context())
	if err == nil { // some systems run it
		require.NoError(t, sink.Close())
	} else {
		requireTransient(t, err)
		require.ErrorIs(t, err, syscall.ETXTBSY)
	}
	for _, passes := range []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ETXTBSY} {
		requireTransient(t, startError(&os.PathError{Op: "fork/exec", Path: path, Err: passes}))
	}
	require.ErrorAs(t, startError(&os.PathError{Op: "fork/exec", Path: path, Err: syscall.ENOEXEC}), new(*PermanentError))
}

// script returns a destination that runs a shell script.
func script(t *testing.T, text string) *Destination {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.sh")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	d, err := Parse("exec:sh%20"+path, "t")
	require.NoError(t, err)
	return d
}

// Close ends a program that does not exit, together with its children. It does not wait for another process that still holds the
// program's stdout: a child in the script's process group, a child that outlived the script, or a child in a session of its own.
func TestExecClose(t *testing.T) {
	for what, text := range map[string]string{
		"a child":   "trap '' TERM INT HUP\nread -r line\necho 1\nsleep 60\nsleep 60\n",
		"an orphan": "read -r line\nsleep 60 2>/dev/null &\necho 1\n",
		"another's": "read -r line\nsetsid sh -c 'echo $$ >\"$0\"; exec sleep 60' \"$0.pid\" 2>/dev/null &\necho 1\nwait\n",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := script(t, text)
			sink, err := d.Open(t.Context())
			require.NoError(t, err)
			own, ok := sink.(*execSink)
			require.True(t, ok)
			t.Cleanup(func() {
				killGroup(own.cmd.Process)
				if text, err := os.ReadFile(own.cmd.Args[1] + ".pid"); err == nil {
					pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
					require.NoError(t, err)
					require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				}
			})
			send(t, sink, messages("t", 1, 1), 1)
			closed := make(chan error, 1)
			go func() { closed <- sink.Close() }()
			select {
			case err := <-closed:
				require.NoError(t, err)
			case <-time.After(patience):
				t.Fatal("Close does not return")
			}
		})
	}
}

// A terminal sends Ctrl-C to its foreground process group. The program runs in a group of its own, so Ctrl-C does not reach it.
func TestExecOwnGroup(t *testing.T) {
	mysqltest.Once(t)
	sink, err := script(t, "while read -r line; do echo 1; done\n").Open(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, sink.Close()) }()
	own, ok := sink.(*execSink)
	require.True(t, ok)
	group, err := syscall.Getpgid(own.cmd.Process.Pid)
	require.NoError(t, err)
	require.Equal(t, own.cmd.Process.Pid, group)
	require.NotEqual(t, syscall.Getpgrp(), group)
}

// A line that is too long to be an answer is an error at once. A long reason for a refusal is cut.
func TestExecLongLine(t *testing.T) {
	mysqltest.Once(t)
	long := "head -c 200000 /dev/zero | tr '\\0' x; echo"
	for text, poisons := range map[string]bool{long: false, "printf 'refuse 1 '; " + long: true} {
		sink, err := script(t, "read -r line\n"+text+"\nread -r line\n").Open(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		n, err := sink.Send(ctx, messages("t", 1, 1))
		cancel()
		require.Zero(t, n)
		require.Less(t, len(err.Error()), 5000)
		require.Contains(t, err.Error(), strings.Repeat("x", 4000))
		var poison *PoisonError
		var stop *PermanentError
		require.Equal(t, poisons, asError(err, &poison), "%v", err)
		require.Equal(t, !poisons, asError(err, &stop), "%v", err)
		require.NoError(t, sink.Close())
	}
}
