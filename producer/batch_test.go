package producer

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/notify"
)

// interpolated returns the maximum length of a statement, when the driver escapes
// every byte of its values: _binary'...' around a payload, '...' around headers.
func interpolated(into string, s statement) int {
	query, args := s.sql(into)
	size := len(query) - len(args) // each ? goes
	for _, arg := range args {
		switch v := arg.(type) {
		case []byte:
			size += len("_binary''") + 2*len(v)
		case string:
			size += len("''") + 2*len(v)
		}
	}
	return size
}

// Whatever the sizes are, no row is lost, doubled or moved, and every statement fits
// into a packet with its command byte.
func TestSplit(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		into := "INSERT INTO `" + strings.Repeat("x", random.IntN(190)) + "` VALUES "
		packet := 1024 + random.IntN(8192)
		batch := batchLimits{rows: 1 + random.IntN(20), bytes: 1 + random.IntN(8192)}
		rows := make([]row, random.IntN(60))
		for i := range rows {
			rows[i].payload = bytes.Repeat([]byte{byte(i)}, random.IntN(1+random.IntN(packet-around)))
			if left := packet - 1 - len(rows[i].payload) - around; left > 0 && i%3 == 0 {
				rows[i].headers = strings.Repeat("h", random.IntN(1+left))
			}
		}
		require.NoError(t, fit(rows, packet))
		var all []row
		for _, s := range split(into, rows, batch, packet) {
			all = append(all, s.rows...)
			require.NotEmpty(t, s.rows)
			require.LessOrEqual(t, len(s.rows), batch.rows)
			if s.prepared {
				require.Len(t, s.rows, 1)
				continue
			}
			size := interpolated(into, s) + 1
			require.Less(t, size, packet)
			require.LessOrEqual(t, size, batch.bytes)
		}
		require.Len(t, all, len(rows))
		for i := range all {
			require.Equal(t, rows[i], all[i])
		}
	}
}

func TestFit(t *testing.T) {
	rows := []row{{payload: []byte("small")}, {headers: "12", payload: make([]byte, 100)}}
	require.NoError(t, fit(rows, 102+around+1))
	var tooLarge *notify.TooLargeError
	require.ErrorAs(t, fit(rows, 102+around), &tooLarge)
	assert.Equal(t, notify.TooLargeError{What: "message", Index: 1, Size: 102 + around, Limit: 102 + around}, *tooLarge)
}
