package producer

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// install installs the wake triggers of the tables, and mqnotify_wake.
func install(tb testing.TB, db *notify.DB, tables ...string) {
	tb.Helper()
	require.NoError(tb, wake.Install(tb.Context(), db, wake.Options{Logger: slog.New(slog.DiscardHandler)}, tables...))
}

// calls returns the number of CALLs that the server has received. A wake trigger makes none.
func calls(tb testing.TB, db *notify.DB) (n int) {
	tb.Helper()
	var name string
	require.NoError(tb, db.Pool().QueryRowContext(tb.Context(), "SHOW GLOBAL STATUS LIKE 'Com_call_procedure'").Scan(&name, &n))
	return n
}

// If a topic has no wake trigger, a publish, alone or in a transaction, wakes consumers of other
// processes by mqnotify_wake. If the procedure is missing, they poll.
func TestPublishWakes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, publish := range map[string]func(t *testing.T, p *Producer){
			"publish": func(t *testing.T, p *Producer) {
				_, err := p.Publish(t.Context(), Message{})
				require.NoError(t, err)
			},
			"transaction": func(t *testing.T, p *Producer) {
				require.NoError(t, p.Transact(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
					_, err := p.PublishTx(ctx, tx, Message{})
					return err
				}))
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				mysqltest.Eventually(t, "mqnotify_wake is faster than polling", func() bool {
					polled, woken := medianWake(t, s, false, publish), medianWake(t, s, true, publish)
					t.Logf("median from the commit to the handler: %v by polling, %v with mqnotify_wake", polled, woken)
					return 3*woken < polled
				})
			})
		}
	})
}

// medianWake returns the median time from a commit to the consumer's handler.
func medianWake(t *testing.T, s *mysqltest.Server, routine bool, publish func(*testing.T, *Producer)) time.Duration {
	t.Helper()
	config := s.Database(t)
	db, far := open(t, config), open(t, config)
	topics := make([]string, 9)
	for i := range topics {
		topics[i] = fmt.Sprint("topic", i)
	}
	require.NoError(t, schema.Init(t.Context(), db.Pool(), append([]string{"other"}, topics...)...))
	if routine {
		install(t, db, "other")
	}
	handled := make(chan time.Time)
	ctx, cancel := context.WithCancel(t.Context())
	var ended []<-chan error
	for _, topic := range topics {
		c, err := consumer.New(far, topic, consumer.Options{Logger: slog.New(slog.DiscardHandler), From: "beginning"})
		require.NoError(t, err)
		ended = append(ended, mysqltest.Result(func() error {
			return c.Run(ctx, consumer.Each(func(context.Context, consumer.Message) error {
				handled <- time.Now()
				return nil
			}))
		}))
	}
	defer func() {
		cancel()
		for _, e := range ended {
			require.NoError(t, mysqltest.Receive(t, e))
		}
	}()
	mysqltest.Window(t, 4*time.Second) // after that the consumers poll once a second
	var took []time.Duration
	for _, topic := range topics {
		p := newProducer(t, db, topic, Options{})
		publish(t, p)
		committed := time.Now()
		took = append(took, mysqltest.Receive(t, handled).Sub(committed))
		mysqltest.Window(t, 70*time.Millisecond)
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// A producer calls mqnotify_wake if the table has no wake trigger. With a trigger it calls it once, and then finds the trigger.
func TestCallsOfWake(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s.Start(t), "x") // no other test moves this server's counter
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "other"))
		install(t, db, "other")
		publish := func(p *Producer) {
			_, err := p.Publish(t.Context(), Message{})
			require.NoError(t, err)
		}
		p := newProducer(t, db, "x", Options{})
		before := calls(t, db)
		const published = 5
		for n := range published {
			publish(p)
			// The first one also reads which tables have triggers.
			mysqltest.Eventually(t, "the call is made", func() bool { return calls(t, db) >= before+n+2 })
			mysqltest.Window(t, 20*time.Millisecond)
		}
		require.Equal(t, before+published+1, calls(t, db))

		install(t, db, "x")
		p = newProducer(t, db, "x", Options{})
		knows(t, p, db)
		mysqltest.Eventually(t, "it calls no more", func() bool { // a call that knows began may still be made
			before := calls(t, db)
			for range published {
				publish(p)
			}
			mysqltest.Window(t, 100*time.Millisecond)
			return calls(t, db) == before
		})
		require.NoError(t, p.Close())
	})
}

// knows publishes until the producer knows that its topic has a wake trigger.
func knows(t *testing.T, p *Producer, db *notify.DB) {
	t.Helper()
	start := calls(t, db)
	mysqltest.Eventually(t, "the producer has called, has asked for the trigger, and calls no more", func() bool {
		before := calls(t, db)
		_, err := p.Publish(t.Context(), Message{})
		require.NoError(t, err)
		mysqltest.Window(t, 100*time.Millisecond)
		return calls(t, db) == before && before >= start+2
	})
}

// When the producer knows that its topic has no wake trigger, it sends an INSERT and the call of mqnotify_wake in one packet.
// Whether or not the call succeeds, the returned ids are those of the rows.
func TestPublishWithCall(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t) // no other test moves this server's counter
		db := topicOn(t, s, "x")
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "other"))
		install(t, db, "other")
		p := newProducer(t, db, "x", Options{})
		ids, err := p.Publish(t.Context(), Message{})
		require.NoError(t, err)
		require.Equal(t, []uint64{1}, ids)
		knowsCalls(t, p)
		publish := func(n int) (ids []uint64, woken bool, err error) {
			messages := make([]Message, n)
			for i := range messages {
				messages[i].Payload = []byte("'; DROP TABLE x; -- ?")
			}
			return p.publish(t.Context(), messages)
		}
		before := calls(t, db)
		ids, woken, err := publish(2)
		require.NoError(t, err)
		require.True(t, woken)
		require.Equal(t, []uint64{2, 3}, ids)
		require.Equal(t, before+1, calls(t, db))
		require.Equal(t, []uint64{1, 2, 3}, mysqltest.Values[uint64](t, db.Pool(), "SELECT id FROM x ORDER BY id"))

		mysqltest.Exec(t, db.Pool(), "DROP PROCEDURE mqnotify_wake")
		ids, woken, err = publish(1)
		require.NoError(t, err)
		require.False(t, woken)
		require.Equal(t, []uint64{4}, ids)

		// The connection's last id belongs to another table now.
		mysqltest.Exec(t, db.Pool(), "ALTER TABLE x MODIFY id BIGINT UNSIGNED NOT NULL DEFAULT 9")
		_, _, err = publish(1)
		require.ErrorIs(t, err, ErrNoID)
		mysqltest.Exec(t, db.Pool(), "DROP TABLE x")
		_, err = p.Publish(t.Context(), Message{})
		require.ErrorIs(t, err, notify.ErrNoTable)
		require.True(t, SafeToRetry(err))
	})
}

// A KILL may arrive after the packet's INSERT was stored, so its error must not be safe to retry.
func TestInterruptedPacketIsInDoubt(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "other"))
		install(t, db, "other")
		lock := "'slow " + db.Name() + "'"
		mysqltest.Exec(t, db.Pool(), "CREATE TRIGGER slow AFTER INSERT ON x FOR EACH ROW DO GET_LOCK("+lock+", 60)")
		p := newProducer(t, db, "x", Options{})
		_, err := p.Publish(t.Context(), Message{})
		require.NoError(t, err)
		knowsCalls(t, p)
		db.Pool().SetMaxIdleConns(0) // the pool's session took the lock
		holder, err := db.Pool().Conn(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, holder.Close()) }()
		mysqltest.Exec(t, holder, "DO GET_LOCK("+lock+", 10)")

		published := mysqltest.Result(func() error { _, err := p.Publish(t.Context(), Message{}); return err })
		var id uint64
		mysqltest.Eventually(t, "the INSERT waits", func() bool {
			ids := mysqltest.Sessions(t, db.Pool(), db.Name(), "STATE = 'User lock'")
			if len(ids) == 1 {
				id = ids[0]
			}
			return len(ids) == 1
		})
		mysqltest.Exec(t, db.Pool(), fmt.Sprintf("KILL QUERY %d", id))
		err = mysqltest.Receive(t, published)
		require.ErrorIs(t, err, notify.ErrUnknown)
		require.False(t, SafeToRetry(err))
	})
}

// knowsCalls waits until the producer knows that its topic has no wake trigger.
func knowsCalls(t *testing.T, p *Producer) {
	t.Helper()
	mysqltest.Eventually(t, "the producer knows that calls are of use", func() bool {
		conn, err := p.waker.Conn(t.Context())
		require.NoError(t, err)
		if conn == nil {
			return false
		}
		require.NoError(t, conn.Close())
		return true
	})
}
