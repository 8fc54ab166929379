package doctor

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/child"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A real node, the only one of its cluster.
func TestGaleraNode(t *testing.T) {
	const provider = "/usr/lib/galera/libgalera_smm.so"
	if _, err := os.Stat(provider); err != nil {
		t.Skipf("needs Debian's galera-4, which comes with mariadb-server: %v", err)
	}
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		if !shared.IsMariaDB() {
			t.Skip("MySQL has no Galera")
		}
		port, err := child.FreePort()
		require.NoError(t, err)
		peers := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		s := shared.Start(t, "--wsrep-on=ON", "--wsrep-provider="+provider, "--wsrep-cluster-address=gcomm://",
			"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-node-address=127.0.0.1",
			fmt.Sprintf("--wsrep-provider-options=gmcast.listen_addr=tcp://%s;gcache.size=1M", peers))
		_, db := initialised(t, s)

		found := examine(t, db, "orders")
		says(t, found.only(t, "cluster"), Warning, "a node of a Galera cluster", "to the same server")
		says(t, found.only(t, "locks"), OK, "advisory locks work", "")
		says(t, found.only(t, "writers"), OK, "a gap waits 1m0s besides, for transactions on other servers", "")
		says(t, found.only(t, "mode"), Warning, "consume polls, at most 1 s apart (the server's locks do not reach all who write to its tables)", "a server that takes all writes alone")
		assert.Len(t, found.worse(), 2, "%v", found)
	})
}
