package waiting_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// Every rule of the trigger is necessary: without it a row is found only by the timeout of the leader's wait, and with
// it at once.
func TestBrokenTriggersLoseRows(t *testing.T) {
	const slow = "CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW DO SLEEP(0.1)"
	for name, c := range map[string]struct {
		old, broken string // what of the trigger is replaced
		table       string // a statement that makes the fault show
		session     string // the same, in each writer's session
	}{
		"fires before the row is in the table": {"AFTER INSERT", "BEFORE INSERT", slow, "DO 0"},
		"a slot is longer than a rest":         {"* 1000)", "* 0.001)", "DO 0", "DO 0"},
		"NOW in place of SYSDATE":              {"SYSDATE(6)", "NOW(6)", "DO 0", "SET timestamp = 1000000000"},
	} {
		t.Run(name, func(t *testing.T) {
			mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
				longest := func(old, broken string) time.Duration {
					config := s.Database(t)
					db := open(t, config)
					makeTopic(t, db, config, "orders", false)
					statement, err := waiting.Trigger(config.DBName, "orders", "insert")
					require.NoError(t, err)
					require.Contains(t, statement, old)
					mysqltest.ExecAll(t, db, strings.ReplaceAll(statement, old, broken), c.table)
					w := waiting.New(config, mysqltest.Logger(t, slog.LevelDebug))
					w.SetLeaderWait(3 * time.Second)
					l := w.Listen(topicOf("orders"))
					defer func() { require.NoError(t, l.Close()) }()
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					head, err := l.Head(ctx)
					require.NoError(t, err)
					var late time.Duration
					for range 2 { // sessions: each keeps its token
						conn, err := db.Conn(ctx)
						require.NoError(t, err)
						defer func() { require.NoError(t, conn.Close()) }()
						mysqltest.Exec(t, conn, c.session)
						sleeps(t, l)
						mysqltest.Exec(t, conn, "INSERT INTO orders (payload) VALUES ('x')")
						committed := time.Now()
						head, err = l.Wait(ctx, head, time.Minute)
						require.NoError(t, err)
						late = max(late, time.Since(committed))
					}
					return late
				}
				mysqltest.Eventually(t, "the rule makes a difference", func() bool {
					right, wrong := longest(c.old, c.old), longest(c.old, c.broken)
					t.Logf("a row is found after %v, and without the rule after %v", right, wrong)
					return 3*right < wrong
				})
			})
		})
	}
}
