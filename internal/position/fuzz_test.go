package position

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParseProgress: any cursor of a client is an error, or a progress whose text reads back as the same.
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
		for i, s := range p.Done.Spans {
			require.Greater(t, s.Lo, p.Settled)
			require.LessOrEqual(t, s.Lo, s.Hi)
			require.True(t, i == 0 || s.Lo > p.Done.Spans[i-1].Hi)
		}
	})
}

// FuzzParse: any text is an error that shows it, or a position.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"beginning", "end", "17", "2026-01-31", "2026-01-31T08:00:00Z", "90m", "-90m", "1e9999h", "last 3", "after 5+7-9"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err == nil {
			require.GreaterOrEqual(t, p.Ago, 0*p.Ago)
			require.True(t, p.Kind != ID || p.ID > 0)
		}
	})
}
