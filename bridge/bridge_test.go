package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// openTopic makes a database with the message table "orders".
func openTopic(tb testing.TB, s *mysqltest.Server) *notify.DB {
	tb.Helper()
	return setUp(tb, s.Database(tb))
}

func setUp(tb testing.TB, config *mysql.Config) *notify.DB {
	tb.Helper()
	db := connect(tb, config)
	require.NoError(tb, schema.Init(tb.Context(), db.Pool(), "orders"))
	return db
}

func connect(tb testing.TB, config *mysql.Config) *notify.DB {
	tb.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// insert adds a row for each number in the range, with the number as its payload.
func insert(tb testing.TB, db *notify.DB, from, to int) {
	tb.Helper()
	for ; from <= to; from += 500 {
		var rows []string
		for n := from; n <= min(to, from+499); n++ {
			rows = append(rows, fmt.Sprintf("('%d')", n))
		}
		_, err := db.Pool().ExecContext(tb.Context(), "INSERT INTO orders (payload) VALUES "+strings.Join(rows, ","))
		require.NoError(tb, err)
	}
}

func atOnce() backoff.BackOff { return &backoff.ZeroBackOff{} }

// running is a bridge that runs during the test.
type running struct {
	stop context.CancelFunc
	done chan struct{}
	err  error
}

func run(tb testing.TB, db *notify.DB, to *Destination, options Options) *running {
	tb.Helper()
	return runOn(tb, db, "orders", to, options)
}

func runOn(tb testing.TB, db *notify.DB, topic string, to *Destination, options Options) *running {
	tb.Helper()
	options.Consumer.Group, options.Consumer.From = "g", "beginning"
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.Retry == nil {
		options.Retry = atOnce
	}
	b, err := New(db, topic, to, options)
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	r := &running{stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = b.Run(ctx)
	}()
	tb.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

func (r *running) wait(tb testing.TB) error {
	tb.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		tb.Fatal("Run does not return")
	}
	return r.err
}

func settled(tb testing.TB, db *notify.DB) (id uint64) {
	tb.Helper()
	require.NoError(tb, db.Pool().GetContext(context.WithoutCancel(tb.Context()), &id, "SELECT settled FROM mqnotify_offset"))
	return id
}

func upTo(n int) (ids []uint64) {
	for id := 1; id <= n; id++ {
		ids = append(ids, uint64(id))
	}
	return ids
}

var toEnd = Options{Consumer: consumer.Options{StopAtEnd: true}}

// The bridge sends a topic in order, at most InFlight messages at a time, and closes every sink.
func TestBridge(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, 1, 2500)
		f := &fake{}
		require.NoError(t, run(t, db, f.destination(), toEnd).wait(t))
		require.Equal(t, upTo(2500), f.ids())
		require.Equal(t, 50, f.largest)
		require.Equal(t, uint64(2500), settled(t, db))
		require.Equal(t, 1, f.opened)
		require.Equal(t, 1, f.closed)
		require.NoError(t, run(t, db, f.destination(), toEnd).wait(t))
		require.Len(t, f.ids(), 2500, "nothing is sent twice")
	})
}

// The offset moves only past confirmed messages. The bridge tries a failed message again before any later one, and sends the
// first message after a failure alone.
func TestOffsetAfterConfirmation(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, 1, 300)
		failures := 0
		f := &fake{}
		f.fail = func(m consumer.Message) error {
			if m.ID%70 == 0 && failures < int(m.ID/70)*3 { // each fails three times
				failures++
				return errors.New("away")
			}
			return nil
		}
		require.NoError(t, run(t, db, f.destination(), toEnd).wait(t))
		require.Equal(t, upTo(300), f.ids())
		require.Equal(t, 12, failures)
		require.Equal(t, 13, f.opened, "a new connection after each failure")
		require.Equal(t, 13, f.closed)

		insert(t, db, 301, 400)
		f.fail = func(m consumer.Message) error {
			if m.ID == 333 {
				return permanent(errors.New("no such queue"))
			}
			return nil
		}
		err := run(t, db, f.destination(), toEnd).wait(t)
		require.ErrorAs(t, err, new(*PermanentError))
		require.ErrorContains(t, err, "no such queue")
		require.Equal(t, uint64(332), settled(t, db), "what was confirmed before it is not sent again")
		f.fail = nil
		require.NoError(t, run(t, db, f.destination(), toEnd).wait(t))
		require.Equal(t, upTo(400), f.ids())
	})
}

// After MaxAttempts tries, a row that the destination refuses becomes a dead letter. With StopOnPoison the bridge stops before
// that row.
func TestPoison(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, 1, 100)
		tries := 0
		f := &fake{fail: func(m consumer.Message) error {
			if m.ID == 42 {
				tries++
				return poison(m, "too large")
			}
			return nil
		}}
		options := toEnd
		options.StopOnPoison, options.MaxAttempts = true, 2
		err := run(t, db, f.destination(), options).wait(t)
		var refused *PoisonError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, uint64(42), refused.ID)
		require.Equal(t, 2, tries)
		require.Equal(t, uint64(41), settled(t, db))

		options.StopOnPoison = false
		require.NoError(t, run(t, db, f.destination(), options).wait(t))
		require.Equal(t, 4, tries)
		require.Equal(t, append(upTo(41), upTo(100)[42:]...), f.ids())
		var letters []struct {
			ID       uint64 `db:"message_id"`
			Payload  string
			Attempts int
			Error    string
		}
		require.NoError(t, db.Pool().SelectContext(t.Context(), &letters,
			"SELECT message_id, payload, attempts, error FROM mqnotify_dead_letter WHERE group_name = 'g'"))
		require.Len(t, letters, 1)
		require.Equal(t, uint64(42), letters[0].ID)
		require.Equal(t, "42", letters[0].Payload)
		require.Equal(t, 2, letters[0].Attempts)
		require.Equal(t, "message 42 is refused: too large", letters[0].Error)
	})
}

// A Send may confirm all messages and return an error, for example if the connection ends behind the last confirmation. The bridge opens
// another sink and sends nothing twice.
func TestErrorAfterConfirmation(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, 1, 20)
		f := &fake{after: func() error { return errors.New("broken pipe") }}
		var log bytes.Buffer
		options := toEnd
		options.Logger = slog.New(slog.NewTextHandler(&log, nil))
		require.NoError(t, run(t, db, f.destination(), options).wait(t))
		require.Equal(t, upTo(20), f.ids())
		require.Equal(t, uint64(20), settled(t, db))
		require.NotContains(t, log.String(), "panic")
	})
}

// When its context ends, the bridge waits for the confirmation of the running Send, sends nothing more, and stores its progress,
// even in the middle of a page.
func TestGracefulStop(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, 1, 100)
		begun, goOn := make(chan struct{}), make(chan struct{})
		var calls atomic.Int32
		f := &fake{wait: func(context.Context) {
			if calls.Add(1) == 3 {
				close(begun)
				<-goOn
			}
		}}
		r := run(t, db, f.destination(), Options{InFlight: 10})
		<-begun
		r.stop()
		close(goOn)
		require.NoError(t, r.wait(t))
		sent := len(f.ids())
		require.Equal(t, 1+2+4, sent, "the first sends have one, two and four messages")
		require.Equal(t, uint64(sent), settled(t, db))
		require.NoError(t, run(t, db, f.destination(), toEnd).wait(t))
		require.Equal(t, upTo(100), f.ids())
	})
}

// The bridge gives up a Send that the destination does not answer, and tries again. If the destination says when to try again,
// the bridge waits until then.
func TestNoAnswer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, 1, 3)
		var calls atomic.Int32
		var logs mysqltest.Text
		f := &fake{wait: func(ctx context.Context) {
			if calls.Add(1) == 1 {
				<-ctx.Done()
			}
		}}
		var asked time.Time
		f.fail = func(m consumer.Message) error {
			switch {
			case calls.Load() == 1:
				return errors.New("cut off")
			case m.ID == 2 && asked.IsZero():
				asked = time.Now()
				return &LaterError{300 * time.Millisecond, errors.New("busy")}
			case m.ID == 2:
				require.GreaterOrEqual(t, time.Since(asked), 300*time.Millisecond)
			}
			return nil
		}
		options := toEnd
		options.SendTimeout, options.Logger = 100*time.Millisecond, slog.New(slog.NewTextHandler(&logs, nil))
		require.NoError(t, run(t, db, f.destination(), options).wait(t))
		require.Equal(t, upTo(3), f.ids())
		require.Contains(t, logs.String(), "not confirmed within 100ms")
		require.Contains(t, logs.String(), "busy")
	})
}

// If the database dies after a confirmation and before the offset is stored, the bridge reads the rows again, but does not send
// them again.
func TestDatabaseDies(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		server := s.Start(t)
		db := openTopic(t, server)
		insert(t, db, 1, 100)
		var calls atomic.Int32
		f := &fake{wait: func(context.Context) {
			if calls.Add(1) == 4 {
				server.Kill()
			}
		}}
		run(t, db, f.destination(), Options{})
		require.Eventually(t, func() bool { return len(f.ids()) == 100 }, patience, 25*time.Millisecond)
		server.Restart(t)
		require.Eventually(t, func() bool {
			var id uint64
			err := db.Pool().GetContext(t.Context(), &id, "SELECT settled FROM mqnotify_offset")
			return err == nil && id == 100
		}, patience, 25*time.Millisecond)
		require.Equal(t, upTo(100), f.ids())
	})
}

// Report tells how many rows of a backlog are sent, how long that took, and how much time is left.
func TestProgress(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, 1, 2000)
		var told []Progress
		options := toEnd
		options.Report = func(p Progress) { told = append(told, p) }
		options.Consumer.PageRows = 100
		f := &fake{}
		require.NoError(t, run(t, db, f.destination(), options).wait(t))
		require.GreaterOrEqual(t, len(told), 20)
		for i, p := range told {
			require.Equal(t, uint64(2000), p.Head)
			require.Zero(t, p.From)
			require.Equal(t, p.ID, uint64(p.Sent))
			require.Equal(t, i < len(told)-1, p.ID < p.Head)
			require.Equal(t, p.ID < p.Head, p.Left > 0)
			require.Positive(t, p.Elapsed)
		}
		insert(t, db, 2001, 2100)
		told = nil
		require.NoError(t, run(t, db, f.destination(), options).wait(t))
		require.Equal(t, uint64(2000), told[0].From, "a second run starts at the stored offset")
	})
}

// New refuses wrong options before it connects.
func TestOptions(t *testing.T) {
	mysqltest.Once(t)
	db, err := notify.Open("me@tcp(127.0.0.1:1)/db")
	require.NoError(t, err)
	defer db.Close()
	to := (&fake{}).destination()
	for _, options := range []Options{
		{},
		{Consumer: consumer.Options{Group: "g"}, InFlight: -1},
		{Consumer: consumer.Options{Group: "g"}, MaxAttempts: -1},
		{Consumer: consumer.Options{Group: "g", Mode: "fast"}},
		{Consumer: consumer.Options{Group: "g", MembersShare: true}},
	} {
		_, err := New(db, "orders", to, options)
		require.ErrorIs(t, err, notify.ErrOptions)
	}
}
