package consumer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A message that almost fills a packet of the server becomes a dead letter. A row whose JSON is larger than a packet does too, without
// the JSON: a retry reads the row again.
func TestLargeDeadLetters(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		db := openTopic(t, shared.Start(t, "--max-allowed-packet=1M"))
		const most = 1 << 20
		do(t, db, fmt.Sprintf(`INSERT INTO orders (payload) VALUES (REPEAT('"', %d))`, most-3000)) // escaped, it is twice as long
		do(t, db, "CREATE TABLE near LIKE orders", fmt.Sprintf(`INSERT INTO near (headers, payload) VALUES ('{"kind": "paid"}', REPEAT('"', %d))`, most-70))
		do(t, db, "CREATE TABLE texts (id INT AUTO_INCREMENT PRIMARY KEY, t LONGTEXT)")
		do(t, db, fmt.Sprintf("INSERT INTO texts (t) VALUES (REPEAT('x', %d))", most-500)) // as JSON, it almost fills a packet
		do(t, db, "CREATE TABLE files (id INT AUTO_INCREMENT PRIMARY KEY, b LONGBLOB)")
		do(t, db, "INSERT INTO files (b) VALUES (REPEAT('x', 900000))") // in base64, it is 1.2 MB
		for topic, size := range map[string]int{"orders": most - 3000, "near": most - 70, "texts": 0, "files": 0} {
			got := failing{}
			o := Options{Group: "mail", From: "beginning", StopAtEnd: true, MaxAttempts: 1}
			require.NoError(t, run(t, db, topic, o, got.handler()).wait(t))
			require.Equal(t, size, mysqltest.Value[int](t, db.Pool(), "SELECT LENGTH(payload) FROM mqnotify_dead_letter WHERE topic = ?", topic))
		}
		require.JSONEq(t, `{"kind": "paid"}`, mysqltest.Value[string](t, db.Pool(), "SELECT headers FROM mqnotify_dead_letter WHERE topic = 'near'"))
		require.Contains(t, mysqltest.Value[string](t, db.Pool(), "SELECT error FROM mqnotify_dead_letter WHERE topic = 'files'"), "max_allowed_packet")
		_, _, err := lettersOf(t, db, "files", "").RetryDead(t.Context(), DeadFilter{})
		require.NoError(t, err)
		got := failing{}
		got.mended.Store(true)
		require.NoError(t, run(t, db, "files", Options{Group: "mail", StopAtEnd: true}, got.handler()).wait(t))
		require.Greater(t, len(got.payloads()[0]), most)
	})
}
