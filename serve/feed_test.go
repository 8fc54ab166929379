package serve

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/position"
)

// A row that commits between the moment when a client joins and the reading of what it
// lacks is an event after that moment, and is not read for it as well.
func TestBackfillLeavesTheHubItsOwn(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		insert(t, db, "orders", numbered(1, 10)...)
		site := start(t, db, Options{Topics: []string{"orders"}})
		then, err := position.ParseProgress("4+6-10") // 5 was not there
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
		require.False(t, has.Has(5), "it is yet to come")
	})
}
