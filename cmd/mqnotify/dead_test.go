package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The command lists, shows, retries and deletes dead letters. Control characters in them do not reach the terminal.
func TestDead(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		require.Equal(t, "no dead letters\n", succeed(t, config, "dead", "orders"))
		mysqltest.Exec(t, db, `INSERT INTO orders (headers, payload) VALUES ('{"k": "v"}', CONCAT('one\n', x'1b', '[31mtwo')), (NULL, x'00ff'), (NULL, CONCAT('x', REPEAT('ü', 3000)))`)
		for _, group := range []string{"mailer", "billing"} {
			succeed(t, config, "consume", "orders", "--group", group, "--from", "1", "--stop-at-end", "--attempts", "1", "--", "sh", "-c", "echo no route >&2; exit 3")
		}
		lines := strings.Split(succeed(t, config, "dead", "orders", "--group", "mailer"), "\n")
		require.Regexp(t, `^ID +GROUP +MESSAGE +ATTEMPTS +FAILED AT +STATE +PAYLOAD +ERROR$`, lines[0])
		require.Regexp(t, `^1 +mailer +1 +1 +\S+Z +dead +one .\[31mtwo +sh: exit status 3: no route$`, lines[1])
		require.Len(t, lines, 5)
		require.Contains(t, succeed(t, config, "dead", "orders", "list", "--limit", "1"), "there may be more: --after 1\n")
		type letter struct {
			ID        uint64
			Group     string
			MessageID uint64 `json:"message_id"`
			Payload   string
			Base64    []byte `json:"payload_base64"`
			Size      int
			FailedAt  time.Time `json:"failed_at"`
			Headers   map[string]string
			Retrying  bool
		}
		var all []letter
		for line := range strings.Lines(succeed(t, config, "dead", "orders", "--json", "--error", "ROUTE")) {
			var l letter
			require.NoError(t, json.Unmarshal([]byte(line), &l))
			all = append(all, l)
		}
		require.Len(t, all, 6)
		require.Equal(t, map[string]string{"k": "v"}, all[0].Headers)
		require.Equal(t, []byte{0, 255}, all[1].Base64)
		require.Equal(t, 6001, all[2].Size)
		require.Equal(t, "x"+strings.Repeat("ü", 2047), all[2].Payload, "the cut is between characters")
		shown := succeed(t, config, "dead", "orders", "show", "1")
		require.Contains(t, shown, "\n\none\n\uFFFD[31mtwo\n")
		require.Contains(t, shown, "header:    k: v\n")
		var whole letter
		require.NoError(t, json.Unmarshal([]byte(succeed(t, config, "dead", "orders", "show", "3", "--json")), &whole))
		require.Equal(t, "x"+strings.Repeat("ü", 3000), whole.Payload)

		require.Equal(t, "2\n", succeed(t, config, "dead", "orders", "retry", "1", "2", "2"))
		require.Contains(t, fail(t, exitFailed, config, "dead", "orders", "retry", "1", "3"), "1 of 2: there is no such dead letter")
		require.Contains(t, fail(t, exitFailed, config, "dead", "orders", "show", "1"), "there is no such dead letter")
		require.Equal(t, 3, strings.Count(succeed(t, config, "consume", "orders", "--group", "mailer", "--stop-at-end"), "\"mqnotify-retry\""))
		require.Empty(t, succeed(t, config, "consume", "orders", "--group", "billing", "--stop-at-end"))
		require.Equal(t, `{"deleted":3}`+"\n", succeed(t, config, "dead", "orders", "delete", "--group", "billing", "--json"))
		require.Equal(t, "0\n", succeed(t, config, "dead", "orders", "delete", "--all"))

		mysqltest.Exec(t, db, "CREATE TABLE shop (no INT AUTO_INCREMENT PRIMARY KEY)")
		mysqltest.Exec(t, db, "INSERT INTO shop VALUES (1), (2)")
		succeed(t, config, "consume", "shop", "--group", "g", "--from", "1", "--stop-at-end", "--attempts", "1", "--", "false")
		mysqltest.Exec(t, db, "DELETE FROM shop WHERE no = 1")
		r := mqnotify(t, config, "", "dead", "shop", "retry", "--all", "--json")
		require.Equal(t, exitFailed, r.code)
		require.Equal(t, `{"gone":[7],"retried":1}`+"\n", r.out)
		require.Contains(t, r.err, "the rows of some dead letters are gone")
		require.Contains(t, succeed(t, config, "dead", "shop"), " retrying ")
		for _, args := range [][]string{{"dead", "nothing"}, {"dead", "nothing", "retry", "--all"}, {"dead", "nothing", "delete", "1"}} {
			require.Contains(t, fail(t, exitFailed, config, args...), "nothing")
		}
	})
}

// If a consumer is killed while it retries a row, no row is lost: the next consumer handles it, and the dead letter is gone.
func TestDeadRetryOfAKilledConsumer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, "CREATE TABLE shop (no INT AUTO_INCREMENT PRIMARY KEY)")
		mysqltest.Exec(t, db, "INSERT INTO shop VALUES (1), (2)")
		consume := []string{"consume", "shop", "--group", "g", "--from", "1", "--stop-at-end", "--attempts", "1", "--", "sh", "-c"}
		succeed(t, config, append(consume, "exit 1")...)
		require.Equal(t, "1\n", succeed(t, config, "dead", "shop", "retry", "2"))
		began := filepath.Join(t.TempDir(), "began")
		cmd := launch(t, config, nil, append(consume, "cat >'"+began+"'; exec sleep 600")...)
		require.Eventually(t, func() bool {
			text, _ := os.ReadFile(began)
			return strings.Contains(string(text), `{"no":2}`)
		}, patience, 25*time.Millisecond)
		require.NoError(t, cmd.Process.Kill())
		<-cmd.ended
		require.Regexp(t, `(?m)^2 +g +2 +1 .* retrying `, succeed(t, config, "dead", "shop"))
		require.Equal(t, `{"no":2}`, succeed(t, config, append(consume, "cat")...))
		require.Equal(t, []string{"1"}, mysqltest.Values[string](t, db, "SELECT message_id FROM mqnotify_dead_letter"))
		require.Empty(t, mysqltest.Values[string](t, db, "SELECT message_id FROM mqnotify_retry"))
		require.Empty(t, succeed(t, config, append(consume, "cat")...), "the row is handled once")
	})
}
