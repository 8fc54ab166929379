package consumer

import (
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// While rows are held back, the log says which id they wait for, and for how long at most if a time bounds that, also at the end of
// the table. It does not say so for rows that are only not committed yet.
func TestWaitIsLogged(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, writers := range ways(s) {
			db := openTopic(t, s)
			insert(t, db, "orders", "one")
			late := newConn(t, db)
			onConn(t, late, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('two')")
			insert(t, db, "orders", "three")
			var said mysqltest.Text
			var got collected
			var told atomic.Uint64
			options := Options{From: "beginning", Strict: true, Writers: writers, Grace: time.Hour, StopAtEnd: true,
				Waiting: func(id uint64, most time.Duration) {
					assert.Equal(t, writers == writersUnknown, most > 50*time.Minute && most < time.Hour)
					told.Store(id)
				},
				Logger: slog.New(slog.NewTextHandler(&said, nil))}
			c := run(t, db, "orders", options, got.handler())
			line := regexp.MustCompile(`msg="waiting for an id that an open transaction may still write[^"]*" topic=orders id=2( up_to=\S+)?`)
			eventually(t, func() bool { return line.MatchString(said.String()) }, "the log does not say what is waited for")
			require.Equal(t, uint64(2), told.Load())
			upTo := line.FindStringSubmatch(said.String())[1]
			if writers == writersUnknown {
				most, err := time.ParseDuration(strings.TrimPrefix(upTo, " up_to="))
				require.NoError(t, err)
				require.Less(t, most, time.Hour, "the time that has passed")
				require.Greater(t, most, 50*time.Minute)
			} else {
				require.Empty(t, upTo)
			}
			require.Equal(t, []string{"one"}, got.payloads())
			onConn(t, late, "COMMIT")
			eventually(t, func() bool { return len(got.payloads()) == 3 }, "the rows do not come")
			require.NoError(t, c.wait(t))
			require.Equal(t, []string{"one", "two", "three"}, got.payloads())

			var silent mysqltest.Text
			options.Strict, options.Logger = false, slog.New(slog.NewTextHandler(&silent, nil))
			require.NoError(t, run(t, db, "orders", options, (&collected{}).handler()).wait(t))
			require.NotContains(t, silent.String(), "may still write")
		}
	})
}
