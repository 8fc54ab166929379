//go:build unix

package bridge

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// The second of two bridges of a group sends nothing until the first ends. Then it continues at the stored offset.
func TestStandby(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, 1, 10)
		first, second := &fake{}, &fake{}
		one := run(t, db, first.destination(), Options{})
		require.Eventually(t, func() bool { return len(first.ids()) == 10 }, patience, 25*time.Millisecond)
		told := make(chan Progress, 1000)
		run(t, db, second.destination(), Options{Report: func(p Progress) { told <- p }})
		insert(t, db, 11, 20)
		require.Eventually(t, func() bool { return len(first.ids()) == 20 }, patience, 25*time.Millisecond)
		stopped := time.Now()
		one.stop()
		require.NoError(t, one.wait(t))
		insert(t, db, 21, 30)
		require.Eventually(t, func() bool { return len(second.ids()) == 10 }, patience, 25*time.Millisecond)
		require.Equal(t, upTo(30), append(first.ids(), second.ids()...))
		progress := <-told
		require.Equal(t, uint64(20), progress.From, "rows that the first bridge sent do not count")
		require.Less(t, progress.Elapsed, time.Since(stopped), "the time in standby does not count")
	})
}

// The second bridge also continues when the active one is killed (kill -9) with rows under way. No row is lost, and at most a
// page is sent twice.
func TestStandbyOfAKilledBridge(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db, err := notify.OpenConfig(config)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
		path := filepath.Join(t.TempDir(), "orders.jsonl")
		written := func() int {
			text, _ := os.ReadFile(path)
			return strings.Count(string(text), "\n")
		}
		insert(t, db, 1, 10)
		active := startChild(t, childEnv, config.FormatDSN(), "file://"+path, "g")
		require.Eventually(t, func() bool { return written() == 10 }, patience, 25*time.Millisecond)
		second := &fake{}
		var logs mysqltest.Text
		run(t, db, second.destination(), Options{Logger: slog.New(slog.NewTextHandler(&logs, nil))})
		require.Eventually(t, func() bool { return strings.Contains(logs.String(), "standing by") }, patience, 25*time.Millisecond)
		insert(t, db, 11, 5000)
		require.Eventually(t, func() bool { return written() > 500 }, patience, 25*time.Millisecond)
		require.Empty(t, second.ids())
		active.end()
		insert(t, db, 5001, 5010)
		require.Eventually(t, func() bool {
			ids := second.ids()
			return len(ids) > 0 && ids[len(ids)-1] == 5010
		}, patience, 25*time.Millisecond)
		n, ids := written(), second.ids()
		require.LessOrEqual(t, ids[0], uint64(n+1), "rows are missing")
		require.Greater(t, ids[0]+200, uint64(n), "more than a page was sent twice")
		require.Equal(t, upTo(5010)[ids[0]-1:], ids)
	})
}
