package position

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestParse(t *testing.T) {
	at := func(t time.Time) From { return From{Kind: Time, Time: t} }
	for text, want := range map[string]From{
		"":                               {},
		"end":                            {},
		"beginning":                      {Kind: ID, ID: 1},
		"0":                              {Kind: ID, ID: 1},
		"42":                             {Kind: ID, ID: 42},
		"007":                            {Kind: ID, ID: 7},
		"18446744073709551615":           {Kind: ID, ID: math.MaxUint64},
		"90":                             {Kind: ID, ID: 90}, // no unit: an id
		"2026":                           {Kind: ID, ID: 2026},
		"last 0":                         {},
		"last 12":                        {Last: 12},
		"after 7":                        {Kind: After, Progress: Progress{Settled: 7}},
		"after 7+9-11":                   {Kind: After, Progress: Progress{7, Set{[]Span{{9, 11}}}}},
		"2026-01-31":                     at(time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)),
		"2026-01-31 08:09:10":            at(time.Date(2026, 1, 31, 8, 9, 10, 0, time.UTC)),
		"2026-01-31T08:09:10Z":           at(time.Date(2026, 1, 31, 8, 9, 10, 0, time.UTC)),
		"2026-01-31T08:09:10.123456789Z": at(time.Date(2026, 1, 31, 8, 9, 10, 123456789, time.UTC)),
		"90m":                            {Kind: Ago, Ago: 90 * time.Minute},
		"1h30m":                          {Kind: Ago, Ago: 90 * time.Minute},
		"0s":                             {Kind: Ago},
	} {
		got, err := Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	got, err := Parse("2026-01-31T08:09:10+02:00")
	require.NoError(t, err)
	require.True(t, got.Time.Equal(time.Date(2026, 1, 31, 6, 9, 10, 0, time.UTC)))
	for _, text := range []string{
		" ", "Beginning", "start", "yesterday", "-1", "+1", "-5m", "1.5", "1e3", "0x10", "18446744073709551616", "last", "last ", "last -1", "last x",
		"last 99999999999", "after", "after ", "after x", "after 7+7", "after beginning",
		"2026-13-01", "2026-02-30", "2026-1-1", "2026-01-31T08:09:10", "31.01.2026", "1d", "42 ", "'; DROP TABLE orders", "\x00",
	} {
		_, err := Parse(text)
		require.Error(t, err, text)
		require.ErrorContains(t, err, fmt.Sprintf("%q", text))
		require.ErrorContains(t, err, "beginning, end, last N, an id")
	}
}

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
		"", "x", "-1", "5+", "5+5", "5+7,7", "5+9,7", "5+7-7", "5+9-7", "5+7-", "5 +7", "5+7,", "18446744073709551616",
	} {
		_, err := ParseProgress(text)
		require.Error(t, err, "%.20q", text)
	}
}

// The arithmetic of Progress, compared with sets of small ids.
func TestProgressOfTwo(t *testing.T) {
	t.Parallel()
	random := mysqltest.Random(t)
	of := func() (p Progress, has map[uint64]bool) {
		has = make(map[uint64]bool)
		p.Settled = random.Uint64N(10)
		for id := range p.Settled + 1 {
			has[id] = true
		}
		for id := p.Settled + 1; id < 40; id++ {
			if random.IntN(2) == 0 {
				p.Done.Add(id, id)
				has[id] = true
			}
		}
		p.Settle(p.Settled)
		return p, has
	}
	for range mysqltest.Many(200, 2000, 20_000) {
		a, inA := of()
		b, inB := of()
		union, common := a.Union(&b), a.Common(&b)
		for id := uint64(1); id < 42; id++ {
			require.Equal(t, inA[id] || inB[id], union.Has(id), "union of %v and %v: %d", a, b, id)
			require.Equal(t, inA[id] && inB[id], common.Has(id), "common of %v and %v: %d", a, b, id)
		}
		require.Equal(t, a.Settled >= b.Settled && a.Settled >= b.Done.Max(), a.Covers(&b))
	}
}
