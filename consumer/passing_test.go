package consumer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A server that lacks disk space or memory for a moment does not end a consumer: it waits, and continues.
func TestPassingServerErrors(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, number := range mysqltest.Some(t, []int{1021, 1041, 1114, 1180, 1206}) {
			t.Run(fmt.Sprint(number), func(t *testing.T) {
				t.Parallel()
				db := openConfig(t, s.Database(t), "orders")
				var got collected
				c := run(t, db, "orders", Options{Group: "g", From: "beginning"}, got.handler())
				insert(t, db, "orders", "first")
				got.waitFor(t, "first")
				mysqltest.Eventually(t, "the offset is stored", func() bool {
					return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_offset") > 0
				})
				tries, stop := mysqltest.FailWith(t, db.Pool(), "mqnotify_offset", number)
				insert(t, db, "orders", "second")
				mysqltest.Eventually(t, "the consumer has tried again", func() bool { return tries() > 1 })
				stop()
				insert(t, db, "orders", "third")
				mysqltest.Eventually(t, "all are handled", func() bool {
					handled := got.payloads()
					return len(handled) > 0 && handled[len(handled)-1] == "third"
				})
				require.NoError(t, c.end(t))
			})
		}
	})
}
