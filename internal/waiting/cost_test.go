package waiting_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// The invariant: the first listening process sends at most 0.15 statements a second, every further one 0.08. That is
// 10.5 and 5.6 in a leader's wait of 70 s, which is shorter here. On an idle machine they send 6 and 5.
func TestIdleStatements(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t) // its statements are counted
		config := s.Database(t)
		db := open(t, config)
		makeTopic(t, db, config, "orders", true)
		const wait = 2 * time.Second
		for n, most := range []float64{10.5, 10.5 + 5.6, 10.5 + 2*5.6} {
			w := waiting.New(config, mysqltest.Logger(t, slog.LevelDebug))
			w.SetLeaderWait(wait)
			l := w.Listen(topicOf("orders"))
			defer func() { require.NoError(t, l.Close()) }()
			sleeps(t, l)
			mysqltest.Eventually(t, "few statements", func() bool {
				waits := mysqltest.Size(1, 3, 3)
				from := s.Questions(t)
				mysqltest.Window(t, time.Duration(waits)*wait)
				each := float64(s.Questions(t)-from-1) / float64(waits)
				t.Logf("%d processes: %.1f statements for each wait of the leader", n+1, each)
				return each <= most
			})
		}
	})
}

// A process that listens to 1000 topics needs few connections, and its listeners are woken soon.
func TestManyTopics(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t, "--table-open-cache=4000")
		config := s.Database(t)
		db := open(t, config)
		count := mysqltest.Size(100, 100, 1000)
		name := func(i int) string { return fmt.Sprintf("topic_%d", i) }
		for i := range count {
			makeTopic(t, db, config, name(i), i < count/2)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		w := waiting.New(config, mysqltest.Logger(t, slog.LevelDebug))
		var listeners []*waiting.Listener
		for i := range count {
			l := w.Listen(topicOf(name(i)))
			defer func() { require.NoError(t, l.Close()) }()
			listeners = append(listeners, l)
		}
		for i, l := range listeners {
			_, err := l.Head(ctx)
			require.NoError(t, err)
			if i < count/2 {
				ready(t, l)
			} else {
				require.ErrorIs(t, l.Ready(ctx), waiting.ErrNoTrigger)
			}
		}
		mysqltest.Eventually(t, "few connections", func() bool { // one that has ended is listed for a moment
			return mysqltest.Value[int](t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE db = DATABASE() AND id <> CONNECTION_ID()") <= 12
		})
		for range 20 {
			l := listeners[mysqltest.Random(t).IntN(count/2)]
			head, err := l.Head(ctx)
			require.NoError(t, err)
			mysqltest.Exec(t, db, "INSERT INTO "+l.Table()+" (payload) VALUES ('x')")
			begun := time.Now()
			_, err = l.Wait(ctx, head, time.Minute)
			require.NoError(t, err)
			t.Log(time.Since(begun))
		}
	})
}
