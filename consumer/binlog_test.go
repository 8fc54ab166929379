package consumer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A group begins, and retries rows, on a server that logs statements, which refuses writes in READ COMMITTED.
func TestStatementLog(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t, "--log-bin", "--server-id=1", "--binlog-format=STATEMENT")
		db := openTopic(t, s)
		shop(t, db, "a", "b")
		deadLetter(t, db, "shop", "mail")
		_, _, err := lettersOf(t, db, "shop", "").RetryDead(t.Context(), DeadFilter{})
		require.NoError(t, err)
		got := failing{}
		got.mended.Store(true)
		require.NoError(t, run(t, db, "shop", Options{Group: "mail", StopAtEnd: true}, got.handler()).wait(t))
		require.Len(t, got.payloads(), 2)
	})
}
