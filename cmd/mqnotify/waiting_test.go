package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Every mode prints what comes, and auto says which it takes, once.
func TestModes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s
		modes := []string{"auto", "gate", "poll", "handshake"}
		if !s.IsMariaDB() {
			own = s.Start(t, "--log-bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--server-id=1")
			modes = append(modes, "gtid")
		}
		for _, mode := range modes {
			t.Run(mode, func(t *testing.T) {
				config, db := database(t, own, "orders")
				for _, command := range [][]string{{"consume", "--limit", "1"}, {"tail", "-f", "-n", "0"}} {
					c := background(t, config, append(command, "orders", "--mode", mode, "--look", "100ms", "--log-level", "debug")...)
					c.err.contains(t, "msg=reading")
					gate := mode == modeAuto || mode == "gate"
					if gate {
						c.err.contains(t, "keeps the gate")
					}
					if mode == modeAuto {
						c.err.contains(t, `msg=waiting topic=orders mode=gate`)
					}
					begun := time.Now()
					mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('x')")
					c.out.contains(t, `"payload":"x"`)
					require.Less(t, time.Since(begun), soon)
					r := c.interrupt(t)
					require.Equal(t, exitDone, r.code)
					told := map[bool]int{true: 1}[mode == modeAuto]
					require.Equal(t, told, strings.Count(r.err, "msg=waiting"), r.err)
					require.Equal(t, gate, strings.Contains(r.err, "keeps the gate"), r.err)
				}
			})
		}
	})
}

// A producer that lives takes part in the gate before its first message, unless it is
// told not to, and leaves nothing of it behind.
func TestProduceJoins(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders", "others")
		in, typed := io.Pipe()
		p := start(t, environment(t, config), in, "produce", "orders", "--log-level", "debug")
		aloneIn, aloneTyped := io.Pipe()
		alone := start(t, environment(t, config), aloneIn, "produce", "others", "--log-level", "debug", "--no-gate")
		p.err.contains(t, `msg="keeps the gate" topic=orders`)

		c := background(t, config, "consume", "orders", "--format", "payload", "--limit", "2", "--log-level", "debug")
		c.err.contains(t, "msg=reading")
		for _, line := range []string{"one\n", "two\n"} {
			_, err := io.WriteString(typed, line)
			require.NoError(t, err)
			c.out.contains(t, line)
		}
		require.Equal(t, exitDone, c.wait(t).code)
		require.NotContains(t, c.err.String(), "keeps the gate")
		require.NoError(t, typed.Close())
		require.Equal(t, exitDone, p.wait(t).code)

		require.NoError(t, aloneTyped.Close())
		require.Empty(t, alone.wait(t).err)
	})
}
