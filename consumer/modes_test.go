package consumer

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// soon is much shorter than the bound at which a consumer polls without any hint.
const soon = maxWait / 3

// A flag that a trigger or a producer sets, in both published forms, wakes a
// consumer that polls nothing else.
func TestFlags(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, c := range []struct {
			flag string
			form schema.TriggerForm
		}{{flagCounter, schema.TriggerCounter}, {flagRow, schema.TriggerRow}} {
			t.Run(c.flag, func(t *testing.T) {
				t.Parallel()
				db := openTopic(t, s)
				trigger, err := schema.Trigger("orders", c.form, "insert")
				require.NoError(t, err)
				do(t, db, trigger)
				insert(t, db, "orders", "one")
				flag := notify.Flag{Topic: "orders"}
				set := func() uint64 {
					counter, err := flag.Read(t.Context(), db.Pool())
					require.NoError(t, err)
					return counter
				}
				require.Equal(t, uint64(1), set())
				var got collected
				k := run(t, db, "orders", Options{From: "beginning", Flag: c.flag}, got.handler())
				got.waitFor(t, "one")
				for i := 2; i < 5; i++ {
					start := time.Now()
					insert(t, db, "orders", strconv.Itoa(i))
					eventually(t, func() bool { return len(got.ids()) == i }, "the row does not come")
					require.Less(t, time.Since(start), soon)
				}
				if c.flag == flagCounter {
					require.Equal(t, uint64(4), set())
				} else {
					eventually(t, func() bool { return set() == 0 }, "the reader leaves the flag's row")
				}
				do(t, db, "DROP TRIGGER "+schema.TriggerName("orders", "INSERT"))
				p, err := producer.New(db, "orders", producer.Options{SetFlag: true})
				require.NoError(t, err)
				start := time.Now()
				_, err = p.Publish(t.Context(), producer.Message{Payload: []byte("five")})
				require.NoError(t, err)
				eventually(t, func() bool { return len(got.ids()) == 5 }, "the published row does not come")
				require.Less(t, time.Since(start), soon)
				require.NoError(t, k.end(t))
			})
		}
	})
}

// A writer whose trigger found the flag's row locks it until it commits: the
// reader can't delete it, and continues to read.
func TestFlagRowHeldByAWriter(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		trigger, err := schema.Trigger("orders", schema.TriggerRow, "insert")
		require.NoError(t, err)
		do(t, db, trigger)
		insert(t, db, "orders", "one")
		conn := newConn(t, db)
		onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('two')")
		insert(t, db, "orders", "three")
		var got collected
		c := run(t, db, "orders", Options{From: "beginning", Flag: flagRow}, got.handler())
		got.waitFor(t, "one", "three")
		onConn(t, conn, "COMMIT")
		got.waitFor(t, "one", "three", "two")
		insert(t, db, "orders", "four")
		got.waitFor(t, "one", "three", "two", "four")
		require.NoError(t, c.end(t))
	})
}

// In the published handshake, producer and consumer take turns, so that nothing is
// inserted while the consumer works.
func TestHandshake(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE work (id BIGINT UNSIGNED NOT NULL)")
		var got collected
		head := func() uint64 { return mysqltest.Value[uint64](t, db.Pool(), "SELECT MAX(id) FROM orders") }
		c := run(t, db, "orders", Options{Group: "g", From: "beginning", Mode: modeHandshake},
			EachTx(func(ctx context.Context, tx *sqlx.Tx, m Message) error {
				before := head()
				for range 5 { // time in which the producer wants to insert
					if now := head(); m.ID > 1 && now != before {
						t.Errorf("message %d was inserted while message %d was handled", now, m.ID)
					}
				}
				if _, err := tx.ExecContext(ctx, "INSERT INTO work VALUES (?)", m.ID); err != nil {
					return err
				}
				return got.handler().handle(ctx, tx, []Message{m})
			}))
		p, err := producer.New(db, "orders", producer.Options{Mode: "handshake", Logger: testLogger(t)})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		ended := sync.OnceValue(func() error {
			cancel()
			return <-done
		})
		defer func() { _ = ended() }()
		for n := 1; n <= 30; n++ {
			_, err := p.Publish(t.Context(), producer.Message{Payload: []byte(strconv.Itoa(n))})
			require.NoError(t, err)
			if n == 1 {
				got.waitFor(t, "1")
				standingBy(t, db, 1) // the consumer, for its turn: from here on they alternate
			}
		}
		got.waitFor(t, numbers(1, 30)...)
		require.ErrorIs(t, ended(), context.Canceled)

		// The producer is gone: rows of other programs are delivered, too.
		insert(t, db, "orders", "alone")
		got.waitFor(t, append(numbers(1, 30), "alone")...)
		require.NoError(t, c.end(t))
		require.Equal(t, numbers(1, 31), mysqltest.Values[string](t, db.Pool(), "SELECT id FROM work ORDER BY id"))
	})
}
