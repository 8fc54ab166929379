package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A ring returns the entries that were put into it, from a given place on. A reader whose entries were overwritten gets a
// warning.
func TestRingCommand(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		succeed(t, config, "ring", "create", "log", "--size", "3")
		succeed(t, config, "ring", "create", "log", "--size", "3")
		require.Empty(t, succeed(t, config, "ring", "read", "log"))
		succeed(t, config, "ring", "put", "log", "1", "2")
		require.Equal(t, "1\n2\n", succeed(t, config, "ring", "read", "log"))
		// put splits entries that exceed the size of the ring into several steps.
		require.Equal(t, exitDone, mqnotify(t, config, "3\n4\n5\n6\n7", "ring", "put", "log").code)
		succeed(t, config, "ring", "put", "log", "8", "9", "10", "11")
		require.Equal(t, []string{"3"}, mysqltest.Values[string](t, db, "SELECT COUNT(*) FROM mqnotify_ring_slot"))

		for want, flags := range map[string]string{
			"9\n10\n11\n": "", "10\n11\n": "-n 2", "11\n": "--after 10", "": "-n 0",
		} {
			require.Equal(t, want, succeed(t, config, append([]string{"ring", "read", "log"}, strings.Fields(flags)...)...), flags)
		}
		r := mqnotify(t, config, "", "ring", "read", "log", "-n", "9")
		require.Equal(t, "9\n10\n11\n", r.out)
		require.NotContains(t, r.err, "overwritten", "only entries after --after count as missed")
		r = mqnotify(t, config, "", "ring", "read", "log", "--after", "3")
		require.Equal(t, "9\n10\n11\n", r.out)
		require.Contains(t, r.err, `msg="entries were overwritten before they were read" ring=log missed=5`)

		lines := strings.Split(succeed(t, config, "ring", "read", "log", "--after", "7", "--json"), "\n")
		require.Equal(t, `{"missed":1}`, lines[0])
		var entry struct {
			Number    int
			WrittenAt time.Time `json:"written_at"`
			Payload   string
		}
		require.NoError(t, json.Unmarshal([]byte(lines[3]), &entry))
		require.Equal(t, 11, entry.Number)
		require.Equal(t, "11", entry.Payload)
		require.False(t, entry.WrittenAt.IsZero())
		mysqltest.Exec(t, db, "UPDATE mqnotify_ring_slot SET payload = x'ff00' WHERE entry = 11")
		require.Contains(t, succeed(t, config, "ring", "read", "log", "--json"), `"payload_base64":"/wA="`)

		require.Contains(t, fail(t, exitUsage, config, "ring", "read", "log", "--after", "12"), `--after 12: the newest entry of ring "log" is 11`)
		require.Contains(t, fail(t, exitUsage, config, "ring", "create", "log", "--size", "4"), "with 3 entries")
		for _, line := range []string{"ring put none x", "ring read none", "ring read none -f"} {
			require.Contains(t, fail(t, exitFailed, config, strings.Fields(line)...),
				`the ring "none" does not exist: make it with `+"`mqnotify ring create NAME --size N`", line)
		}
		require.Contains(t, fail(t, exitFailed, s.Database(t), "ring", "create", "log", "--size", "3"), "mqnotify init")
	})
}

// A put wakes a reader that follows. The reader survives a loss of its connections, and says how many entries it missed in the
// meantime. Without hints it polls every 10 s: six lines, each typed when the previous one is printed, would take 50 s.
func TestRingFollow(t *testing.T) {
	mysqltest.NotShort(t, "ringbuffer.TestRingAtOnce")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		succeed(t, config, "ring", "create", "log", "--size", "3")
		succeed(t, config, "ring", "put", "log", "old", "newest")
		proxy := s.Proxy(t)
		reader := background(t, proxy.Config(config), "ring", "read", "log", "-f", "-n", "1")
		reader.out.contains(t, "newest\n")
		in, typed := io.Pipe()
		writer := start(t, environment(t, config), in, "ring", "put", "log")
		begun, want := time.Now(), "newest\n"
		for n := range 6 {
			line := fmt.Sprintf("typed %d\n", n)
			_, err := io.WriteString(typed, line)
			require.NoError(t, err)
			reader.out.contains(t, line)
			want += line
		}
		require.Less(t, time.Since(begun), 40*time.Second)

		// The connection breaks during a statement of the reader.
		blocker, err := db.Connx(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, blocker.Close()) }()
		_, err = blocker.ExecContext(t.Context(), "LOCK TABLES mqnotify_ring WRITE, mqnotify_ring_slot WRITE")
		require.NoError(t, err)
		succeed(t, config, "notify", "ring/log")
		require.Eventually(t, func() bool {
			return len(mysqltest.Values[string](t, db, "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND state LIKE 'Waiting for table%'")) > 0
		}, patience, 25*time.Millisecond)
		proxy.Down()
		reader.err.contains(t, "the server is away")
		_, err = blocker.ExecContext(t.Context(), "UNLOCK TABLES")
		require.NoError(t, err)
		succeed(t, config, "ring", "put", "log", "4", "5", "6")
		succeed(t, config, "ring", "put", "log", "7", "8")
		proxy.Up()
		reader.out.contains(t, "8\n")
		require.NoError(t, typed.Close())
		require.Equal(t, exitDone, writer.wait(t).code)
		r := reader.interrupt(t)
		require.Equal(t, exitDone, r.code, r.err)
		require.Equal(t, want+"6\n7\n8\n", r.out)
		require.Contains(t, r.err, "missed=2")
	})
}
