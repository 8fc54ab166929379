package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// soon is shorter than the time after which a consumer reads without a hint.
const soon = 40 * time.Second

// Every mode prints new messages, and auto says once how it waits.
func TestModes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders", "bulk")
		succeed(t, config, "wake", "install", "orders")
		for _, test := range []struct{ topic, mode, told string }{
			{"orders", "auto", "msg=waiting topic=orders mode=trigger"},
			{"bulk", "auto", "msg=waiting topic=bulk mode=poll why="},
			{"orders", "poll", ""},
			{"orders", "handshake", ""},
		} {
			for _, command := range [][]string{{"consume"}, {"tail", "-f", "-n", "0"}} {
				c := background(t, config, append(command, test.topic, "--mode", test.mode, "--log-level", "debug")...)
				c.err.contains(t, "msg=reading")
				c.err.contains(t, test.told)
				begun := time.Now()
				mysqltest.Exec(t, db, "INSERT INTO "+test.topic+" (payload) VALUES ('x')")
				c.out.contains(t, `"payload":"x"`)
				require.Less(t, time.Since(begun), soon)
				r := c.interrupt(t)
				require.Equal(t, exitDone, r.code)
				told := map[bool]int{true: 1}[test.told != ""]
				require.Equal(t, told, strings.Count(r.err, "msg=waiting"), r.err)
			}
		}
	})
}
