package consumer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// BenchmarkWake measures the latency of a message, from Publish's call, and from its return, to the handler's
// call, by a wake trigger, by mqnotify_wake, and by GTIDs. Floors in the same rounds are a round trip, and the hand-over of a
// lock between two bare sessions. The figures are medians.
//
//	go test ./consumer -run - -bench Wake -benchtime 500x
func BenchmarkWake(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		b.Run("trigger", func(b *testing.B) { benchmarkWake(b, s.Start(b), "orders") })
		b.Run("call", func(b *testing.B) { benchmarkWake(b, s.Start(b), "other") })
		if !s.IsMariaDB() {
			b.Run("gtid", func(b *testing.B) { benchmarkWake(b, s.Start(b, gtids...)) })
		}
	})
}

// benchmarkWake creates wake triggers for some tables.
func benchmarkWake(b *testing.B, s *mysqltest.Server, triggers ...string) {
	b.Helper()
	config := s.Database(b)
	db := openConfig(b, config, "orders", "other")
	if len(triggers) > 0 {
		require.NoError(b, wake.Install(b.Context(), db, wake.Options{Logger: quiet}, triggers...))
	}
	p, err := producer.New(openConfig(b, config), "orders", producer.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, p.Close()) })
	handled := make(chan time.Time, 1)
	run(b, openConfig(b, config), "orders", Options{From: "beginning"}, Each(func(context.Context, Message) error {
		handled <- time.Now()
		return nil
	}))
	insert(b, db, "orders", "first")
	<-handled
	floor := newHandOver(b, db)
	var trips, handOvers, all, after []float64
	for b.Loop() {
		trips = append(trips, floor.trip(b))
		handOvers = append(handOvers, floor.pass(b))
		<-time.After(10 * time.Millisecond) // all wait again
		begun := time.Now()
		_, err := p.Publish(b.Context(), producer.Message{Payload: []byte("x")})
		committed := time.Now()
		require.NoError(b, err)
		at := <-handled
		all = append(all, ms(at.Sub(begun)))
		after = append(after, ms(at.Sub(committed)))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(trips), "trip-ms")
	b.ReportMetric(median(handOvers), "hand-over-ms")
	b.ReportMetric(median(all), "publish-to-handler-ms")
	b.ReportMetric(median(after), "commit-to-handler-ms")
	b.ReportMetric(median(after)/median(trips), "trips")
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// handOver is two sessions that pass a lock to each other.
type handOver struct {
	holder, waiter *core.Session
	name           string
}

func newHandOver(tb testing.TB, db *notify.DB) *handOver {
	tb.Helper()
	h := &handOver{name: core.LockName("floor", db.Name())}
	for _, session := range []**core.Session{&h.holder, &h.waiter} {
		var err error
		*session, err = core.NewSession(tb.Context(), db, core.SessionOptions{IdleTimeout: time.Hour})
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, (*session).Close()) })
	}
	return h
}

func (h *handOver) trip(tb testing.TB) float64 {
	tb.Helper()
	begun := time.Now()
	require.NoError(tb, h.ask(tb, h.holder, "SELECT 1"))
	return ms(time.Since(begun))
}

func (h *handOver) ask(tb testing.TB, session *core.Session, query string, args ...any) error {
	tb.Helper()
	return session.Do(tb.Context(), func(conn *sqlx.Conn) error {
		var n int
		return conn.QueryRowxContext(tb.Context(), query, args...).Scan(&n)
	})
}

// pass returns the time from the release to the return of the wait.
func (h *handOver) pass(tb testing.TB) float64 {
	tb.Helper()
	require.NoError(tb, h.ask(tb, h.holder, "SELECT GET_LOCK(?, 0)", h.name))
	var passed time.Time
	waited := make(chan error, 1)
	go func() {
		err := h.ask(tb, h.waiter, "SELECT GET_LOCK(?, 10)", h.name)
		passed = time.Now()
		waited <- err
	}()
	<-time.After(3 * time.Millisecond) // it waits
	begun := time.Now()
	require.NoError(tb, h.ask(tb, h.holder, "SELECT RELEASE_LOCK(?)", h.name))
	require.NoError(tb, <-waited)
	require.NoError(tb, h.ask(tb, h.waiter, "SELECT RELEASE_LOCK(?)", h.name))
	return ms(passed.Sub(begun))
}

// 4 producers publish a thousand messages a second to 10 consumers, each a process, for
// a second; 30 s in the long form. Every consumer gets all. The test prints the cost.
func TestThousandASecond(t *testing.T) {
	mysqltest.NotShort(t, "TestConsumeBacklogAndNews")
	const producers, consumers, rate = 4, 10, 1000
	period := mysqltest.Size(200*time.Millisecond, time.Second, 30*time.Second)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		commands := mysqltest.CountCommands(config)
		db := openConfig(t, config, "orders")
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: quiet}, "orders"))
		var got [consumers]atomic.Int64
		var late atomic.Int64 // the longest, in ns
		for i := range got {
			run(t, openConfig(t, config), "orders", Options{From: "beginning"}, Each(func(_ context.Context, m Message) error {
				got[i].Add(1)
				if took := int64(time.Since(m.CreatedAt)); took > late.Load() {
					late.Store(took)
				}
				return nil
			}))
		}
		ctx, stop := context.WithTimeout(t.Context(), period)
		defer stop()
		statements, used := commands.Statements(), cpu(t)
		begun := time.Now()
		var sent atomic.Int64
		var publishing sync.WaitGroup
		for range producers {
			p, err := producer.New(openConfig(t, config), "orders", producer.Options{})
			require.NoError(t, err)
			defer func() { require.NoError(t, p.Close()) }()
			publishing.Go(func() {
				tick := time.NewTicker(time.Second * producers / rate)
				defer tick.Stop()
				for ctx.Err() == nil {
					<-tick.C
					if _, err := p.Publish(t.Context(), producer.Message{Payload: []byte("x")}); err != nil {
						t.Error(err)
						return
					}
					sent.Add(1)
				}
			})
		}
		publishing.Wait()
		took := time.Since(begun)
		for i := range got {
			eventually(t, func() bool { return got[i].Load() == sent.Load() }, "consumer %d lacks messages", i)
		}
		n := float64(sent.Load())
		t.Logf("%.0f messages a second to %d consumers; %.1f statements a message (%.2f a message and consumer); this process "+
			"used %.0f %% of a core; the slowest message took %v", n/took.Seconds(), consumers,
			float64(commands.Statements()-statements)/n, float64(commands.Statements()-statements)/n/consumers,
			100*(cpu(t)-used).Seconds()/took.Seconds(), time.Duration(late.Load()).Round(time.Millisecond))
		if mysqltest.Long() { // on a machine of its own
			require.Greater(t, n/took.Seconds(), 0.5*rate, fmt.Sprint("the producers were held up: ", sent.Load()))
		}
	})
}
