//go:build unix

package bridge

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// importEnv makes the test binary run an import. It has the DSN and the URL.
const importEnv = "MQNOTIFY_TEST_IMPORT"

// importMain runs an import until SIGTERM.
func importMain(told string) error {
	parts := strings.Split(told, "\n")
	db, err := notify.Open(parts[0])
	if err != nil {
		return err
	}
	from, err := parseOrigin(parts[1], "orders")
	if err != nil {
		return err
	}
	i, err := newImport(db, from, "orders", ImportOptions{
		Batch: 10, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Retry: func() backoff.BackOff { return notify.Exponential(20*time.Millisecond, time.Second) },
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return errors.Join(i.Run(ctx), db.Close())
}

// An import stores each message once, although its process and the database are killed (kill -9) again and again while messages
// come. The long form has thirty times as many messages, and runs every broker on every server.
func TestImportKilled(t *testing.T) {
	eachOrigin(t, func(t *testing.T, s *mysqltest.Server, from source) { from.testKilled(t, s.Start(t)) })
}

func (from source) testKilled(t *testing.T, s *mysqltest.Server) {
	want, most := mysqltest.Many(500, 1000, 30_000), mysqltest.Many(4, 5, 100)
	random := mysqltest.Random(t)
	config := s.Database(t)
	db, err := notify.OpenConfig(config)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
	there := func() (n int) {
		_ = db.Pool().GetContext(t.Context(), &n, "SELECT COUNT(*) FROM orders") // after an error it is 0, and the caller asks again
		return n
	}
	c := startChild(t, importEnv, config.FormatDSN(), from.url)
	first := 1
	if from.name == "mqtt" { // MQTT keeps messages only for existing subscriptions
		require.Eventually(t, func() bool {
			from.publish(t, 1, 1)
			return there() > 0
		}, patience, 50*time.Millisecond)
		first = 2
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	kills, crashes := 0, 0                                   // of the import, of the database
	enough, over := make(chan struct{}), make(chan struct{}) // closed after at least three kills, after the last kill
	var killing sync.WaitGroup
	killing.Go(func() {
		defer close(over)
		for seen := 0; kills+crashes < most && ctx.Err() == nil; {
			if kills+crashes == 3 {
				select {
				case <-enough:
				default:
					close(enough)
				}
			}
			now := there()
			if now > seen { // the import is storing messages
				pause(ctx, time.Duration(random.IntN(30))*time.Millisecond)
				switch {
				case kills > 2*crashes:
					s.Kill()
					s.Restart(t)
					crashes++
				case c.kill():
					kills++
				}
			}
			seen = now
			pause(ctx, 10*time.Millisecond)
		}
	})
	from.publish(t, first, want)
	for more, late := true, time.After(2*time.Minute); more; { // publish slowly until enough processes were killed
		select {
		case <-enough:
			more = false
		case <-over:
			more = false
		case <-late:
			t.Fatalf("too few kills in 2 minutes: the import has stored %d of %d messages", there(), want)
		case <-time.After(100 * time.Millisecond):
			from.publish(t, want+1, want+5)
			want += 5
		}
	}
	require.Eventually(t, func() bool { return there() >= want }, 2*time.Minute, 10*time.Millisecond)
	stop()
	killing.Wait()
	got := payloads(t, db)
	slices.Sort(got)
	wanted := numbers(want)
	slices.Sort(wanted)
	require.Equal(t, wanted, got)
	require.GreaterOrEqual(t, kills+crashes, 3)
	require.Positive(t, crashes)
	require.NotContains(t, c.ended(), brokertest.Password)
	t.Logf("%d messages, %d kills of the import, %d of the database", want, kills, crashes)
}
