package consumer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// With GTIDs a row is delivered at its commit even if the last row that a poll saw belongs to an open
// transaction, because a poll takes no lock.
func TestGTIDOpenTransaction(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if s.IsMariaDB() {
			t.Skip("no GTIDs to wait for")
		}
		own := s.Start(t, "--log-bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--server-id=1")
		config := own.Database(t)
		open := func() *notify.DB {
			db, err := notify.OpenConfig(config)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			return db
		}
		db := open()
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
		p, err := producer.New(db, "orders", producer.Options{})
		require.NoError(t, err)
		defer p.Close()
		c, err := New(open(), "orders", Options{From: "beginning"})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan string, 1000)
		ended := make(chan error, 1)
		go func() {
			ended <- c.Run(ctx, Each(func(_ context.Context, m Message) error { got <- string(m.Payload); return nil }))
		}()
		publish := func(text string) {
			_, err := p.Publish(t.Context(), producer.Message{Payload: []byte(text)})
			require.NoError(t, err)
		}
		seen := map[string]bool{}
		until := func(text string, most time.Duration) bool {
			late := time.After(most)
			for !seen[text] {
				select {
				case handled := <-got:
					seen[handled] = true
				case <-late:
					return false
				}
			}
			return true
		}
		publish("first")
		require.True(t, until("first", patience))
		slow := 0
		rounds := mysqltest.Many(4, 20, 20)
		for i := range rounds {
			tx, err := db.Pool().BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			_, err = p.PublishTx(t.Context(), tx, producer.Message{Payload: []byte(fmt.Sprint("late", i))})
			require.NoError(t, err)
			publish(fmt.Sprint("early", i))
			if !until(fmt.Sprint("early", i), 1500*time.Millisecond) { // a poll that waits for a lock does for 2 s
				slow++
			}
			require.NoError(t, tx.Commit())
		}
		require.Less(t, slow, rounds, "it came late in all rounds")
		require.True(t, until(fmt.Sprint("late", rounds-1), patience))
		cancel()
		require.NoError(t, <-ended)
	})
}
