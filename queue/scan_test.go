package queue

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// If full scans are slow, a claim begins behind the last one, and finds no task before that until a full scan is due, because full
// scans take only a share of the time. Then it finds every task. A single slow full scan changes nothing.
func TestSlowScans(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, want := range []int{1, 3} {
			db, _ := database(t, s)
			q := newQueue(t, db, Options{Logger: slog.New(slog.DiscardHandler)})
			l := newStore(t, db, true)
			claim := func() (ids []uint64) {
				t.Helper()
				tasks, _, err := l.round(t.Context(), nil, want)
				require.NoError(t, err)
				return idsOf(tasks)
			}
			enqueue(t, q, "1")
			require.Len(t, claim(), 1)

			const long = time.Hour
			l.took, l.scannedAt = [2]time.Duration{0, long}, time.Now()
			require.False(t, l.scansAreSlow(), "one was slow")
			l.took[0] = long
			require.Equal(t, scanShare*scanMost, l.scanRest(), "what a lock wait may have added counts to a bound")
			require.True(t, l.scansAreSlow())
			l.scannedAt = time.Now().Add(long)
			require.Empty(t, claim())
			require.True(t, l.unscanned)
			urgent, err := q.Enqueue(t.Context(), Entry{Priority: -1})
			require.NoError(t, err)
			require.Empty(t, claim(), "it is before the last claim")
			next := enqueue(t, q, "2")
			require.Equal(t, next, claim())
			require.Empty(t, claim())

			l.scannedAt = time.Now().Add(-long)
			require.Equal(t, urgent, claim(), "a full scan is due")
			require.False(t, l.scansAreSlow() && l.unscanned)
			assert.Less(t, time.Since(l.scannedAt), long)
		}
	})
}
