package consumer

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParseProgress: what a client may send as its cursor is an error, or a progress whose text reads back as the same.
func FuzzParseProgress(f *testing.F) {
	for _, seed := range []string{"", "0", "1041", "1041+1043-1050,1052", "1+18446744073709551615", "7+5", "1+3-2", "1,2"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParseProgress(text)
		if err != nil {
			return
		}
		again, err := ParseProgress(p.Text(math.MaxInt))
		require.NoError(t, err)
		require.Equal(t, p.Text(math.MaxInt), again.Text(math.MaxInt))
		for i, s := range p.p.done.spans {
			require.Greater(t, s.lo, p.p.settled)
			require.LessOrEqual(t, s.lo, s.hi)
			require.True(t, i == 0 || s.lo > p.p.done.spans[i-1].hi)
		}
	})
}

// FuzzParsePosition: an error that shows the text, or a position.
func FuzzParsePosition(f *testing.F) {
	for _, seed := range []string{"beginning", "end", "17", "2026-01-31", "2026-01-31T08:00:00Z", "90m", "-90m", "1e9999h"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePosition(text)
		if err == nil {
			require.GreaterOrEqual(t, p.ago, 0*p.ago)
			require.True(t, p.kind != fromID || p.id > 0)
		}
	})
}
