//go:build unix

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A command that asks for the lock under which it runs fails, because it would wait for itself.
func TestLockNested(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		path, err := program()
		require.NoError(t, err)
		for _, kind := range []string{kindAdvisory, kindLease} {
			nested := func(inner string) []string {
				return []string{"lock", "deploy", "--inherit-dsn", "--kind", kind, "--", "sh", "-c", `exec "$0" lock ` + inner + ` --kind ` + kind + ` -- echo ran`, path}
			}
			p := launch(t, config, nil, nested("deploy")...)
			require.Equal(t, exitFailed, p.code(t))
			require.Contains(t, p.err.String(), `a command above this one holds the lock "deploy"`)
			require.Empty(t, p.out.String())
			p = launch(t, config, nil, nested("build")...)
			require.Equal(t, exitDone, p.code(t), p.err.String())
			require.Equal(t, "ran\n", p.out.String())
		}
	})
}

// A command that has outlived the lock under which it began can take it.
func TestLockOutlived(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		path, err := program()
		require.NoError(t, err)
		folder := t.TempDir()
		gate, out := filepath.Join(folder, "gate"), filepath.Join(folder, "out")
		p := launch(t, config, nil, "lock", "deploy", "--inherit-dsn", "--", "sh", "-c",
			`setsid sh -c 'while ! [ -e `+gate+` ]; do sleep 0.05; done; "$0" lock deploy -- echo ran >`+out+` 2>&1' "$0" >/dev/null 2>&1 </dev/null & echo begun`, path)
		require.Equal(t, exitDone, p.code(t), p.err.String())
		require.NoError(t, os.WriteFile(gate, nil, 0o600))
		var text []byte
		mysqltest.Eventually(t, "it has run", func() bool {
			text, err = os.ReadFile(out)
			return err == nil && len(text) > 0
		})
		require.Equal(t, "ran\n", string(text))
	})
}

// Two commands that take two locks in opposite orders wait forever. After some seconds each says which session holds the lock
// that it waits for, and which locks are held above it.
func TestLocksInOppositeOrders(t *testing.T) {
	mysqltest.NotShort(t, "TestLockExcludes")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		path, err := program()
		require.NoError(t, err)
		for _, kind := range []string{kindAdvisory, kindLease} {
			gate := filepath.Join(t.TempDir(), "gate")
			var both []*process
			for _, locks := range [][2]string{{"a", "b"}, {"b", "a"}} {
				p := launch(t, config, nil, "lock", locks[0], "--inherit-dsn", "--kind", kind, "--", "sh", "-c", "echo got; while ! [ -e "+gate+" ]; do sleep 0.05; done; "+
					`exec "$0" lock `+locks[1]+" --kind "+kind+" -- echo ran", path)
				p.out.contains(t, "got\n")
				both = append(both, p)
			}
			require.NoError(t, os.WriteFile(gate, nil, 0o600))
			for i, p := range both {
				p.err.contains(t, "still waiting for the lock")
				require.Contains(t, p.err.String(), "held above this command")
				require.Contains(t, p.err.String(), kind+" "+[]string{"a", "b"}[i]+" of the database "+config.DBName)
				if kind == kindAdvisory {
					require.Regexp(t, `holder="connection \d+, \w+@`, p.err.String())
				} else {
					require.Regexp(t, `holder="a lease taken \d+s ago"`, p.err.String())
				}
			}
			both[0].signal(t, syscall.SIGTERM)
			require.NotZero(t, both[0].code(t))
			require.Equal(t, exitDone, both[1].code(t), both[1].err.String())
			require.Equal(t, "got\nran\n", both[1].out.String())
		}
	})
}
