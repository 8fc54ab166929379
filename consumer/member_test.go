package consumer

import (
	"context"
	"fmt"
	"hash/crc32"
	"sync"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A partition goes to another member after its handler has finished its current messages and its
// offset is stored. If it is released before that, two members handle a message at the same time.
func TestShareHandsOver(t *testing.T) {
	for _, hasty := range []bool{false, true} {
		t.Run(fmt.Sprintf("hasty=%v", hasty), func(t *testing.T) {
			mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
				db := openTopic(t, s)
				key := "k"
				for crc32.ChecksumIEEE([]byte(key))%2 != 1 { // the partition that the first member gives up
					key += "k"
				}
				for range 8 {
					publishKey(t, db, key, "x")
				}
				options := Options{Group: "g", From: "beginning", MembersShare: true, Partitions: 2, hasty: hasty}
				var mu sync.Mutex
				working, twice := make(map[uint64]bool), 0
				entered, release := make(chan uint64, 100), make(chan struct{})
				free := sync.OnceFunc(func() { close(release) })
				defer free()
				work := func(wait bool) Handler {
					return Each(func(_ context.Context, m Message) error {
						mu.Lock()
						if working[m.ID] {
							twice++
						}
						working[m.ID] = true
						mu.Unlock()
						entered <- m.ID
						if wait {
							<-release
						}
						mu.Lock()
						delete(working, m.ID)
						mu.Unlock()
						return nil
					})
				}
				a := run(t, db, "orders", options, work(true))
				<-entered
				b := run(t, db, "orders", options, work(false))
				settled := func() bool {
					s := snapshotOf(t, db, "g")
					return hasty && s.shared() && len(s.fair()) == 2 || !hasty && len(s.fair()) == 2
				}
				eventually(t, settled, "the second member does not come")
				if hasty {
					<-entered
				}
				free()
				fairly(t, db, "g", 2)
				eventually(t, func() bool {
					return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_partition WHERE settled = 8") == 2
				}, "not all is done")
				for _, member := range []*running{a, b} {
					if err := member.end(t); !hasty { // a hasty one may find out that it has lost the partition
						require.NoError(t, err)
					}
				}
				require.Equal(t, hasty, twice > 0)
			})
		})
	}
}

// If a member loses its locks during a handler's transaction, the handler's context ends,
// another member handles the message, and the first transaction is not committed.
func TestShareLockLost(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE work (id BIGINT UNSIGNED NOT NULL, member CHAR(1) NOT NULL)")
		publishKey(t, db, "k", "one")
		work := func(ctx context.Context, tx *sqlx.Tx, m Message, member string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO work VALUES (?, ?)", m.ID, member)
			return err
		}
		options := Options{Group: "g", From: "beginning", MembersShare: true, Partitions: 1}
		entered, release := make(chan context.Context, 1), make(chan struct{})
		a := run(t, db, "orders", options, EachTx(func(ctx context.Context, tx *sqlx.Tx, m Message) error {
			err := work(context.WithoutCancel(ctx), tx, m, "a")
			entered <- ctx
			<-release
			return err
		}))
		handling := <-entered
		b := run(t, db, "orders", options, EachTx(func(ctx context.Context, tx *sqlx.Tx, m Message) error {
			return work(ctx, tx, m, "b")
		}))
		standingBy(t, db, 1) // there is one partition
		mysqltest.KillSession(t, db.Pool(), snapshotOf(t, db, "g").owners[0])
		<-handling.Done()
		require.ErrorIs(t, context.Cause(handling), notify.ErrLockLost)
		eventually(t, func() bool { return mysqltest.Value[int](t, db.Pool(), "SELECT settled FROM mqnotify_partition") == 1 }, "the second member does not take over")
		close(release)
		require.NoError(t, a.end(t))
		require.NoError(t, b.end(t))
		require.Equal(t, []string{"1b"}, mysqltest.Values[string](t, db.Pool(), "SELECT CONCAT(id, member) FROM work"))
	})
}

// Shares are fair whichever slots are taken.
func TestFair(t *testing.T) {
	t.Parallel()
	random := mysqltest.Random(t)
	for members := 1; members <= 12; members++ {
		s := snapshot{slots: make([]uint64, 12), owners: make([]uint64, 12)}
		for i, place := range random.Perm(12)[:members] {
			s.slots[place] = uint64(i + 1)
		}
		sum, least, most := 0, 12, 0
		for _, n := range s.fair() {
			sum, least, most = sum+n, min(least, n), max(most, n)
		}
		require.Equal(t, 12, sum)
		require.LessOrEqual(t, most-least, 1)
		require.False(t, s.shared(), "nobody has any")
	}
}
