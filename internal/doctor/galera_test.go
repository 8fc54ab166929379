package doctor

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A real node, the only one of its cluster.
func TestGaleraNode(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		if !shared.IsMariaDB() {
			t.Skip("MySQL has no Galera")
		}
		s := shared.Galera(t, 1)[0]
		_, db := initialised(t, s)

		found := examine(t, db, "orders")
		says(t, found.only(t, "cluster"), Warning, "a node of a Galera cluster", "to the same server")
		says(t, found.only(t, "locks"), OK, "advisory locks work", "")
		says(t, found.only(t, "writers"), OK, "a gap waits 1m0s besides, for transactions on other servers", "")
		says(t, found.only(t, "mode"), Warning, "consume polls, at most 1 s apart (the server's locks do not reach all who write to its tables)", "a server that takes all writes alone")
		assert.Len(t, found.worse(), 2, "%v", found)
	})
}
