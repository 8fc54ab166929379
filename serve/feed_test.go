package serve

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/position"
)

// A row that commits after a client has joined reaches it as an event. The backfill, which reads the older rows that the client
// lacks, leaves out that row.
func TestBackfillLeavesOutEvents(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		insert(t, db, "orders", numbered(1, 10)...)
		site := start(t, db, Options{Topics: []string{"orders"}})
		then, err := position.ParseProgress("4+6-10") // id 5 was not committed yet
		require.NoError(t, err)
		has, err := position.ParseProgress("1+3")
		require.NoError(t, err)
		var got []uint64
		f := feed{hub: site.topics["orders"].hub}
		require.NoError(t, f.backfill(t.Context(), &has, &then, func(items []item) error {
			for _, i := range items {
				var m message
				require.NoError(t, json.Unmarshal(i.json, &m))
				got = append(got, m.ID)
			}
			return nil
		}))
		require.Equal(t, []uint64{2, 4, 6, 7, 8, 9, 10}, got)
		require.False(t, has.Has(5), "the event will bring it")
	})
}
