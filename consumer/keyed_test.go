package consumer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/table"
)

// A message of a key that was published after another commit is delivered after that commit's rows, even if these
// fill a gap. If there are too many gaps to read at one time, it waits.
func TestShareOrderOfLateCommits(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, gaps := range []int{0, maxRanges + 1} {
			db := openTopic(t, s)
			session, err := core.NewSession(t.Context(), db, core.SessionOptions{})
			require.NoError(t, err)
			defer func() { require.NoError(t, session.Close()) }()
			described, err := table.Describe(t.Context(), db.Pool(), db.Name(), "orders")
			require.NoError(t, err)
			rows, err := newRows(session, described, Options{})
			require.NoError(t, err)
			require.NoError(t, rows.prepare(t.Context()))
			out := make(chan batch, 10)
			r := &reader{rows: rows, source: unknown{}, wm: newWatermark(0, position.Set{}), out: out, log: testLogger(t), pageRows: 1000, limit: 1000, keyed: true}
			late := newConn(t, db)
			onConn(t, late, "START TRANSACTION", "INSERT INTO orders (id, payload) VALUES (1, 'late')")
			for n := range gaps {
				do(t, db, fmt.Sprintf("INSERT INTO orders (id, payload) VALUES (%d, 'x')", 3+2*n))
			}
			insert(t, db, "orders", "before")
			_, err = r.readPage(t.Context())
			require.NoError(t, err)
			<-out
			onConn(t, late, "COMMIT")
			insert(t, db, "orders", "after")
			read, err := r.readPage(t.Context())
			require.NoError(t, err)
			if gaps > 0 {
				require.True(t, read.withheld)
				_, err = r.drain(t.Context())
				require.NoError(t, err)
			}
			require.Equal(t, []string{"late", "after"}, []string{string((<-out).messages[0].Payload), lastPayload(out)})
		}
	})
}

// lastPayload returns the payload of the last of the next messages.
func lastPayload(out chan batch) string {
	for b := range out {
		if n := len(b.messages); n > 0 {
			return string(b.messages[n-1].Payload)
		}
	}
	return ""
}
