package consumer

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A group's status shows its members, their partitions, and the waiting rows of these.
func TestShareStatus(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		for n := range 40 {
			publishKey(t, db, strconv.Itoa(n), "x")
		}
		release := make(chan struct{})
		free := sync.OnceFunc(func() { close(release) })
		defer free()
		handler := Each(func(context.Context, Message) error {
			<-release
			return nil
		})
		var members []*running
		for _, name := range []string{"a", "b"} {
			members = append(members, run(t, db, "orders", Options{Group: "g", From: "1", MembersShare: true, Partitions: 6, Member: name}, handler))
			eventually(t, func() bool { return len(statusOf(t, db, "orders").Groups) == 1 }, "no group")
			if name == "a" {
				fairly(t, db, "g", 1)
			}
		}
		eventually(t, func() bool { return len(snapshotOf(t, db, "g").fair()) == 2 }, "the second does not come")
		g := statusOf(t, db, "orders").group(t, "g")
		require.Equal(t, 6, g.Partitions)
		require.Equal(t, "header key", g.PartitionBy)
		require.Equal(t, 40, g.Waiting)
		require.False(t, g.MoreWaiting)
		require.NotZero(t, g.Session)
		waiting := 0
		for _, m := range g.Members {
			waiting += m.Waiting
		}
		require.Equal(t, 40, waiting)
		free()
		fairly(t, db, "g", 2)
		eventually(t, func() bool { return statusOf(t, db, "orders").group(t, "g").Waiting == 0 }, "not all is done")
		eventually(t, func() bool { // each has stored its name with what it has
			g := statusOf(t, db, "orders").group(t, "g")
			return len(g.Members) == 2 && len(g.Members[0].Partitions) == 3 && len(g.Members[1].Partitions) == 3 &&
				g.Members[0].Member+g.Members[1].Member == "ab" && g.Settled == 40
		}, "the status does not show the members")
		for _, m := range members {
			require.NoError(t, m.end(t))
		}
		eventually(t, func() bool { return statusOf(t, db, "orders").group(t, "g").Session == 0 }, "the members do not leave")
		g = statusOf(t, db, "orders").group(t, "g")
		require.Equal(t, []MemberStatus{{Partitions: []int{0, 1, 2, 3, 4, 5}, Settled: 40}}, g.Members)
	})
}
