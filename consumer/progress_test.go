package consumer

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestProgressText(t *testing.T) {
	var p Progress
	assert.Equal(t, "0", p.Text(10))
	p.Settle(5)
	for _, id := range []uint64{7, 8, 10, 12, 3} {
		p.Add(id)
	}
	assert.Equal(t, "5+7-8,10,12", p.Text(10))
	assert.Equal(t, "5+7-8,10", p.Text(2), "the highest are left out, and come again")
	for id, has := range map[uint64]bool{1: true, 5: true, 6: false, 7: true, 9: false, 10: true, 11: false, 13: false} {
		assert.Equal(t, has, p.Has(id), "%d", id)
	}
	assert.Equal(t, uint64(12), p.Largest())
	again, err := ParseProgress(p.Text(10))
	require.NoError(t, err)
	assert.Equal(t, p, again)
	clone := p.Clone()
	clone.Settle(11)
	assert.Equal(t, "12", clone.Text(10))
	assert.Equal(t, "5+7-8,10,12", p.Text(10))
	for text, want := range map[string]string{"0+2,9,14": "5+7-10,12,14", "8+10": "8+10,12", "20": "20"} {
		q, err := ParseProgress(text)
		require.NoError(t, err)
		one, other := p.Union(&q), q.Union(&p)
		assert.Equal(t, want, one.Text(10))
		assert.Equal(t, want, other.Text(10))
	}

	for text, want := range map[string]string{
		"0": "0", "18446744073709551615": "18446744073709551615", "5+6": "6", "5+6-9,11": "9+11", "1+3-18446744073709551615": "1+3-18446744073709551615",
	} {
		p, err := ParseProgress(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, p.Text(math.MaxInt))
	}
	for _, text := range []string{
		"", "x", "-1", "5+", "5+5", "5+7,7", "5+9,7", "5+7-7", "5+9-7", "5+7-", "5 +7", "5+7,", "18446744073709551616", strings.Repeat("1", maxProgressText+1),
	} {
		_, err := ParseProgress(text)
		require.Error(t, err, "%.20q", text)
	}
}

// Watch is told where reading begins and how the watermark moves, not past an open gap.
func TestWatch(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "a", "b")
		told := make(chan Progress, 1000)
		var got collected
		run(t, db, "orders", Options{From: Last(1), Watch: func(p Progress) { told <- p }}, got.handler())
		next := func() Progress {
			select {
			case p := <-told:
				return p
			case <-time.After(patience):
				t.Fatal("nothing is told")
				return Progress{}
			}
		}
		begun := next()
		assert.True(t, begun.Has(1))
		assert.False(t, begun.Has(2))
		got.waitFor(t, "b")
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('late')")
		require.NoError(t, err)
		insert(t, db, "orders", "c")
		got.waitFor(t, "b", "c")
		for p := begun; p.Settled() != 2; p = next() {
			require.Less(t, p.Settled(), uint64(3), "3 is on its way")
		}
		require.NoError(t, tx.Commit())
		for p := begun; p.Settled() != 4; p = next() {
			require.LessOrEqual(t, p.Settled(), uint64(4))
		}
		got.waitFor(t, "b", "c", "late")
	})
}

// The arithmetic of progress, against sets of small ids.
func TestProgressOfTwo(t *testing.T) {
	t.Parallel()
	random := mysqltest.Random(t)
	of := func() (p progress, has map[uint64]bool) {
		has = make(map[uint64]bool)
		p.settled = random.Uint64N(10)
		for id := range p.settled + 1 {
			has[id] = true
		}
		for id := p.settled + 1; id < 40; id++ {
			if random.IntN(2) == 0 {
				p.done.add(id, id)
				has[id] = true
			}
		}
		p.settle(p.settled)
		return p, has
	}
	has := func(p *progress, id uint64) bool { return id <= p.settled || p.done.contains(id) }
	for range mysqltest.Many(200, 2000, 20_000) {
		a, inA := of()
		b, inB := of()
		union, common := a.union(&b), a.common(&b)
		for id := uint64(1); id < 42; id++ {
			require.Equal(t, inA[id] || inB[id], has(&union, id), "union of %v and %v: %d", a, b, id)
			require.Equal(t, inA[id] && inB[id], has(&common, id), "common of %v and %v: %d", a, b, id)
		}
		require.Equal(t, a.settled >= b.settled && a.settled >= b.done.max(), a.covers(&b))
	}
}
