// Package bench compares mqnotify with PostgreSQL's LISTEN and NOTIFY. It is a module of its own, so that programs that use
// mqnotify do not download a driver for PostgreSQL.
package bench

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/postgrestest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// BenchmarkPostgres measures the time from the start of a publish to the wake of another process, and to the handler that has
// the row. It compares a wake trigger, and GTIDs without a trigger, with PostgreSQL's LISTEN and NOTIFY. It also measures a bare
// INSERT on both servers. The servers take turns, and the results are medians. PostgreSQL notifies in the statement of the
// INSERT, and its listener reads the new rows when it is notified.
//
// All servers write a commit to the log at once and flush it later: MySQL with innodb_flush_log_at_trx_commit=2, PostgreSQL with
// fsync=off.
//
//	go -C bench test -run - -bench Postgres -benchtime 100x
func BenchmarkPostgres(b *testing.B) {
	url := startPostgres(b)
	gtids := []string{"--log-bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--server-id=1"}
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		for _, ours := range []struct {
			name    string
			trigger bool
			flags   []string
			open    func(b *testing.B, s *mysqltest.Server, trigger bool) *side
		}{
			{"trigger/wait", true, nil, waiter},
			{"trigger/handler", true, nil, handler},
			{"gtid/wait", false, gtids, waiter},
			{"gtid/handler", false, gtids, handler},
		} {
			if ours.flags != nil && s.IsMariaDB() {
				continue
			}
			b.Run(ours.name, func(b *testing.B) {
				mine := ours.open(b, s.Start(b, ours.flags...), ours.trigger)
				theirs := listener(b, url, filepath.Base(ours.name) == "handler")
				for b.Loop() {
					mine.round(b)
					theirs.round(b)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(ms(mine.inserts), "insert-ms")
				b.ReportMetric(ms(mine.wakes), "ms")
				b.ReportMetric(ms(theirs.inserts), "postgres-insert-ms")
				b.ReportMetric(ms(theirs.wakes), "postgres-ms")
			})
		}
	})
}

// median sorts all.
func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

func ms(all []time.Duration) float64 { return float64(median(all)) / float64(time.Millisecond) }

// side is one of the two servers that are compared.
type side struct {
	insert, publish func() error
	woken           chan time.Time

	inserts, wakes []time.Duration
}

// round measures a few inserts and publishes. A single one would find caches full of the other server's data.
func (s *side) round(b *testing.B) {
	b.Helper()
	for range 5 {
		<-time.After(3 * time.Millisecond) // until every session waits again
		begun := time.Now()
		require.NoError(b, s.insert())
		s.inserts = append(s.inserts, time.Since(begun))
		<-time.After(3 * time.Millisecond)
		for len(s.woken) > 0 { // of a hint without a new row
			<-s.woken
		}
		begun = time.Now()
		require.NoError(b, s.publish())
		s.wakes = append(s.wakes, (<-s.woken).Sub(begun))
	}
}

// whileListening runs f until the benchmark ends, and then ends its context.
func whileListening(b *testing.B, f func(ctx context.Context)) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	b.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

var payload = []byte("a short row, as in a topic")

// mqnotify returns a producer and the DB of a listener, which share only the server.
func mqnotify(b *testing.B, s *mysqltest.Server, trigger bool) (*side, *notify.DB) {
	b.Helper()
	config := s.Database(b)
	var dbs [2]*notify.DB
	for i := range dbs {
		var err error
		dbs[i], err = notify.OpenConfig(config)
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, dbs[i].Close()) })
	}
	require.NoError(b, schema.Init(b.Context(), dbs[0].Pool(), "orders", "bare"))
	if trigger {
		require.NoError(b, wake.Install(b.Context(), dbs[0], wake.Options{}, "orders"))
	}
	p, err := producer.New(dbs[0], "orders", producer.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, p.Close()) })
	return &side{
		insert: func() error {
			_, err := dbs[0].Pool().ExecContext(b.Context(), "INSERT INTO bare (payload) VALUES (?)", payload)
			return err
		},
		publish: func() error {
			_, err := p.Publish(b.Context(), producer.Message{Payload: payload})
			return err
		},
		woken: make(chan time.Time, 1),
	}, dbs[1]
}

func handler(b *testing.B, s *mysqltest.Server, trigger bool) *side {
	b.Helper()
	mine, db := mqnotify(b, s, trigger)
	c, err := consumer.New(db, "orders", consumer.Options{
		From: "beginning", Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(b, err)
	whileListening(b, func(ctx context.Context) {
		err := c.Run(ctx, consumer.Each(func(context.Context, consumer.Message) error {
			mine.woken <- time.Now()
			return nil
		}))
		if err != nil {
			b.Error(err)
		}
	})
	require.NoError(b, mine.publish())
	<-mine.woken
	return mine
}

func waiter(b *testing.B, s *mysqltest.Server, trigger bool) *side {
	b.Helper()
	mine, db := mqnotify(b, s, trigger)
	w := core.NewAuto(db, core.LargestID("orders", "id"), core.AutoOptions{})
	b.Cleanup(func() { require.NoError(b, w.Close()) })
	head, err := w.Head(b.Context())
	require.NoError(b, err)
	whileListening(b, func(ctx context.Context) {
		for {
			next, err := w.Wait(ctx, head, time.Hour)
			if err != nil {
				return
			}
			if next != head {
				head = next
				mine.woken <- time.Now()
			}
		}
	})
	return mine
}

func listener(b *testing.B, url string, read bool) *side {
	b.Helper()
	publisher, listener := connect(b, url), connect(b, url)
	for _, statement := range []string{
		"DROP TABLE IF EXISTS orders, bare",
		"CREATE TABLE orders (id bigserial PRIMARY KEY, created_at timestamptz NOT NULL DEFAULT now(), headers jsonb, payload bytea NOT NULL)",
		"CREATE TABLE bare (LIKE orders INCLUDING ALL)",
	} {
		_, err := publisher.Exec(b.Context(), statement)
		require.NoError(b, err)
	}
	_, err := listener.Exec(b.Context(), "LISTEN orders")
	require.NoError(b, err)
	theirs := &side{woken: make(chan time.Time, 1)}
	send := func(query string) func() error {
		return func() error {
			_, err := publisher.Exec(b.Context(), query, payload)
			return err
		}
	}
	theirs.insert = send("INSERT INTO bare (payload) VALUES ($1)")
	theirs.publish = send("WITH message AS (INSERT INTO orders (payload) VALUES ($1) RETURNING id) SELECT pg_notify('orders', '') FROM message")
	var last, id int64
	var created time.Time
	var headers, body []byte
	whileListening(b, func(ctx context.Context) {
		for {
			if _, err := listener.WaitForNotification(ctx); err != nil {
				return
			}
			if !read {
				theirs.woken <- time.Now()
				continue
			}
			rows, err := listener.Query(ctx, "SELECT id, created_at, headers, payload FROM orders WHERE id > $1 ORDER BY id LIMIT 100", last)
			if err == nil {
				_, err = pgx.ForEachRow(rows, []any{&id, &created, &headers, &body}, func() error {
					last = id
					theirs.woken <- time.Now()
					return nil
				})
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	return theirs
}

func connect(b *testing.B, url string) *pgx.Conn {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), url)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close(context.WithoutCancel(b.Context()))) })
	return conn
}

// startPostgres starts a private server. It skips the benchmark if PostgreSQL is not installed.
func startPostgres(b *testing.B) (url string) {
	b.Helper()
	url, stop, err := postgrestest.Start(b.Context())
	if errors.Is(err, postgrestest.ErrNone) {
		b.Skip(err)
	}
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, stop()) })
	return url
}
