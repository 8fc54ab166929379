package queue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// writeMain appends numbers to a ring, one to five at a time, without an end. It does not append
// again the numbers of an Append that failed, because they may be there.
func writeMain(db *notify.DB, told processTold) error {
	ring, err := OpenRing(db, "log")
	if err != nil {
		return err
	}
	random := mysqltest.RandomOf(told.Name)
	for n := 0; ; {
		entries := make([][]byte, 1+random.IntN(5))
		for i := range entries {
			n++
			entries[i] = fmt.Appendf(nil, "%s %d %d", told.Name, n, len(entries)-1-i)
		}
		_, _ = ring.Append(context.Background(), entries...)                    // one that failed is missing, or not
		<-time.After(time.Duration(random.Int64N(int64(5 * time.Millisecond)))) // others have a machine to share
	}
}

// Processes append to a ring; some are killed in the middle, and the connections of others are
// cut. A reader gets each entry in the order of the numbers, without a gap that it is not told
// of, and of what was appended together all or nothing.
func TestRingProcesses(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		const size, writers = 2000, 4
		kills := mysqltest.Many(2, 6, 20)
		random := mysqltest.Random(t)
		db, config := ringOf(t, s, size)
		proxy := s.Proxy(t)
		config = s.User(t, config, "ALL ON "+config.DBName+".*") // of their own, which tells their sessions
		configs := []*mysql.Config{config, proxy.Config(config)}
		started := 0
		start := func(i int) *process {
			started++
			return startProcess(t, processTold{Role: "writer", Name: fmt.Sprint(started), DSN: configs[i%2].FormatDSN()})
		}
		alive := make([]*process, writers)
		for i := range alive {
			alive[i] = start(i)
		}
		ring := openRing(t, db)
		var at, entries, missed uint64
		last := map[string]int{}
		whole := 0 // how many of those that were appended together are to come yet
		read := func() {
			t.Helper()
			got, err := ring.Read(t.Context(), at, 1000)
			require.NoError(t, err)
			if n := got[0].Missed; n > 0 {
				at, whole, missed = at+n, -1, missed+n
			}
			for _, e := range got {
				if at == 0 { // it begins with the oldest
					at, whole = e.Number-1, -1
				}
				at++
				require.Equal(t, at, e.Number)
				var writer string
				var n, more int
				_, err := fmt.Sscan(string(e.Payload), &writer, &n, &more)
				require.NoError(t, err)
				require.Greater(t, n, last[writer], "in the order of its writer")
				if whole > 0 {
					require.Equal(t, whole-1, more, "together")
					require.Equal(t, last[writer]+1, n, "together")
				}
				last[writer], whole = n, more
				entries++
			}
		}
		for kill := range kills {
			for entries < uint64(kill+1)*500 {
				read()
			}
			i := random.IntN(writers)
			alive[i].kill()
			alive[i] = start(i)
			proxy.Down()
			proxy.Up()
		}
		for _, p := range alive {
			p.kill()
		}
		// The server may still end what they had sent.
		eventually(t, func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.processlist WHERE user = ?", config.User) == 0
		}, "they are gone")
		head := mysqltest.Value[uint64](t, db.Pool(), "SELECT head FROM mqnotify_ring")
		for at < head {
			read()
		}
		assert.LessOrEqual(t, whole, 0, "the last is whole")
		assert.Equal(t, fmt.Sprintf("%d %d %d", min(size, head), head-min(size, head)+1, head),
			mysqltest.Value[string](t, db.Pool(), "SELECT CONCAT_WS(' ', COUNT(*), MIN(entry), MAX(entry)) FROM mqnotify_ring_slot"))
		t.Logf("%d entries read, %d missed and told; %d writers of %d killed", entries, missed, kills, started)
	})
}
