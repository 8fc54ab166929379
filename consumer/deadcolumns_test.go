package consumer

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A dead letter of a group that reads columns has the whole message, which a retry publishes.
func TestRetryOfAMessageReadByColumns(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		for i, payload := range []string{"LONGBLOB", "LONGTEXT CHARACTER SET latin1"} {
			group := fmt.Sprint("g", i)
			do(t, db, "DELETE FROM orders", "ALTER TABLE orders MODIFY payload "+payload+" NOT NULL", `INSERT INTO orders (headers, payload) VALUES ('{"key": "k"}', 'é')`)
			options := Options{Group: group, From: "beginning", Columns: []string{"id"}, StopAtEnd: true, MaxAttempts: 1, Retry: atOnce}
			require.NoError(t, run(t, db, "orders", options, (&failing{}).handler()).wait(t))
			letters, err := lettersOf(t, db, "orders", group).DeadLetters(t.Context(), DeadFilter{Whole: true})
			require.NoError(t, err)
			require.Len(t, letters, 1)
			require.Equal(t, "é", string(letters[0].Payload))
			again, _, err := lettersOf(t, db, "orders", group).RetryDead(t.Context(), DeadFilter{})
			require.NoError(t, err)
			require.Len(t, again, 1)
			require.Equal(t, []string{"é k"}, mysqltest.Values[string](t, db.Pool(),
				"SELECT DISTINCT CONCAT(CONVERT(payload USING utf8mb4), ' ', JSON_UNQUOTE(JSON_EXTRACT(headers, '$.key'))) FROM orders"))
			var got collected
			require.NoError(t, run(t, db, "orders", options, got.handler()).wait(t))
			require.Equal(t, []string{fmt.Sprintf(`{"id":%d}`, again[0])}, got.payloads())
		}
	})
}

// A retried row whose handler returns nil after its time is over was handled.
func TestRetryAfterTheHandlersTimeout(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		shop(t, db, "a")
		deadLetter(t, db, "shop", "mail")
		_, _, err := lettersOf(t, db, "shop", "mail").RetryDead(t.Context(), DeadFilter{})
		require.NoError(t, err)
		var calls atomic.Int32
		options := Options{Group: "mail", HandlerTimeout: 50 * time.Millisecond, StopAtEnd: true}
		require.NoError(t, run(t, db, "shop", options, Each(func(ctx context.Context, _ Message) error {
			calls.Add(1)
			<-ctx.Done()
			return nil
		})).wait(t))
		require.EqualValues(t, 1, calls.Load())
		require.Equal(t, 0, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter"))
	})
}

// MariaDB's JSON is a LONGTEXT with a check, whatever its collation. On MySQL that is a text.
func TestJSONOfAnotherCollation(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE own (id INT AUTO_INCREMENT PRIMARY KEY, data LONGTEXT CHECK (JSON_VALID(data))) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
			`INSERT INTO own (data) VALUES ('{"a": 1}')`)
		var got collected
		require.NoError(t, run(t, db, "own", Options{From: "beginning", StopAtEnd: true}, got.handler()).wait(t))
		want := `{"id":1,"data":"{\"a\": 1}"}`
		if s.IsMariaDB() {
			want = `{"id":1,"data":{"a": 1}}`
		}
		require.Equal(t, []string{want}, got.payloads())
	})
}
