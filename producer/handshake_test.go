package producer

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// running is a Producer whose Run runs.
type running struct {
	*Producer
	stop func()
	end  <-chan error
}

func run(t *testing.T, db *notify.DB, topic string, options Options) *running {
	t.Helper()
	options.Mode = modeHandshake
	p, err := New(db, topic, options)
	require.NoError(t, err)
	return runIt(t, p)
}

func runIt(t *testing.T, p *Producer) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { end <- p.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	select {
	case <-p.handshake.ready:
	case err := <-end:
		t.Fatalf("Run ended: %v", err)
	}
	return &running{p, cancel, end}
}

// reader is the consumer's side: it reads new rows while it holds the lock.
type reader struct {
	*core.Handshake
	session *core.Session
	topic   string
	last    uint64
	head    core.Head
}

func newReader(t *testing.T, db *notify.DB, topic string) *reader {
	t.Helper()
	session, err := core.NewSession(t.Context(), db, core.SessionOptions{})
	require.NoError(t, err)
	name := core.HandshakeName(db.Name(), topic)
	r := &reader{
		Handshake: core.NewHandshake(session, name, core.LargestID(topic, "id"), &notify.Fibonacci{Min: 5 * time.Millisecond, Max: 1500 * time.Millisecond}),
		session:   session, topic: topic,
	}
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// turn waits for the consumer's turn and returns the new payloads.
func (r *reader) turn(ctx context.Context) (payloads []string, err error) {
	if r.head, err = r.Wait(ctx, r.head, 10*time.Second); err != nil {
		return nil, err
	}
	return payloads, r.session.Do(ctx, func(conn *sqlx.Conn) error {
		err := conn.SelectContext(ctx, &payloads, "SELECT payload FROM "+ident.Quote(r.topic)+" WHERE id > ? ORDER BY id", r.last)
		if err != nil {
			return err
		}
		return conn.GetContext(ctx, &r.last, "SELECT COALESCE(MAX(id), 0) FROM "+ident.Quote(r.topic))
	})
}

// begin gives the consumer its first turn, while there is no producer.
func (r *reader) begin(t *testing.T) {
	t.Helper()
	_, err := r.Wait(t.Context(), r.head, time.Millisecond)
	require.NoError(t, err)
}

// queued returns when one of the two waits for the lock, which the other has: from
// then on they take turns.
func queued(t *testing.T, db *notify.DB) (id uint64) {
	t.Helper()
	return only(t, db, "STATE = 'User lock'")
}

// read takes turns until n payloads have come, and returns how many turns brought some.
func (r *reader) read(ctx context.Context, n int) (all []string, turns int, err error) {
	for len(all) < n {
		payloads, err := r.turn(ctx)
		if err != nil {
			return all, turns, err
		}
		if len(payloads) > 0 {
			turns++
		}
		all = append(all, payloads...)
	}
	return all, turns, nil
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func payload(i int) Message { return Message{Payload: fmt.Append(nil, i)} }

// A message that is published in the consumer's turn is inserted after this turn
// and not before, and wakes the consumer for the next one.
func TestHandshakeAlternates(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		const topic, n = "a `topic`", 30
		db := topicOn(t, s, topic)
		ctx := deadline(t)
		r := newReader(t, db, topic)
		r.begin(t)
		h := run(t, db, topic, Options{})
		for i := range n {
			published := publishing(ctx, h, payload(i))
			queued(t, db) // the producer, while it is the consumer's turn
			require.Equal(t, i, count(t, db, topic))
			require.Empty(t, published)
			payloads, turns, err := r.read(ctx, 1)
			require.NoError(t, err)
			require.NoError(t, <-published)
			require.Equal(t, []string{fmt.Sprint(i)}, payloads)
			require.Equal(t, 1, turns)
		}
	})
}

// When both sides run as fast as they can, all messages come, in order, and nothing is inserted in
// the consumer's turn.
func TestHandshakeSidesDoNotOverlap(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		n := mysqltest.Many(50, 200, 200)
		db := topicOn(t, s, "x")
		ctx := deadline(t)
		r := newReader(t, db, "x")
		r.begin(t)
		h := run(t, db, "x", Options{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range n {
				if _, err := h.Publish(ctx, payload(i)); !assert.NoError(t, err) {
					return
				}
			}
		})
		var all []string
		for len(all) < n {
			payloads, err := r.turn(ctx)
			require.NoError(t, err)
			all = append(all, payloads...)
			require.Equal(t, len(all), count(t, db, "x"), "inserted in the consumer's turn")
		}
		wg.Wait()
		for i, payload := range all {
			require.Equal(t, fmt.Sprint(i), payload)
		}
	})
}

// A consumer that begins to wait just after the producer's turn has missed the
// release that should have woken it. It need not wait for its bound.
func TestHandshakeWithALateConsumer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		ctx := deadline(t)
		h := run(t, db, "x", Options{})
		r := newReader(t, db, "x")
		large := Message{Payload: make([]byte, 64<<20)}
		_, err := h.Publish(ctx, payload(0)) // which it turns again for during a second
		require.NoError(t, err)
		_, err = h.Publish(ctx, large)
		require.ErrorAs(t, err, new(*notify.TooLargeError)) // taken after the turn, and no turn by itself
		begun := time.Now()
		head, err := r.Wait(ctx, core.Head{}, 20*time.Second)
		require.NoError(t, err)
		id, some := head.Value()
		assert.True(t, some)
		assert.EqualValues(t, 1, id)
		assert.Less(t, time.Since(begun), 10*time.Second)
	})
}

// consumersTurn returns both sides of a handshake over the table x after its first message, in the consumer's turn.
func consumersTurn(ctx context.Context, t *testing.T, db *notify.DB) (*reader, *running) {
	t.Helper()
	r := newReader(t, db, "x")
	r.begin(t)
	h := run(t, db, "x", Options{})
	queued(t, db)
	first := publishing(ctx, h, payload(-1))
	_, _, err := r.read(ctx, 1)
	require.NoError(t, err)
	require.NoError(t, <-first)
	return r, h
}

// Messages that are published in the consumer's turn come together in the next one.
func TestHandshakeBatches(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		ctx := deadline(t)
		r, h := consumersTurn(ctx, t, db)

		const publishers = 20
		var wg sync.WaitGroup
		for i := range publishers {
			wg.Go(func() {
				ids, err := h.Publish(ctx, payload(2*i), payload(2*i+1))
				if assert.NoError(t, err) && assert.Len(t, ids, 2) {
					var got []string
					assert.NoError(t, db.Pool().SelectContext(ctx, &got, "SELECT payload FROM x WHERE id IN (?, ?) ORDER BY id", ids[0], ids[1]))
					assert.Equal(t, []string{fmt.Sprint(2 * i), fmt.Sprint(2*i + 1)}, got)
				}
			})
		}
		// The consumer continues its turn.
		require.Eventually(t, func() bool { return inTurn() == publishers }, 30*time.Second, 10*time.Millisecond)
		assert.Equal(t, 1, count(t, db, "x"), "inserted in the consumer's turn")
		all, turns, err := r.read(ctx, 2*publishers)
		require.NoError(t, err)
		assert.Len(t, all, 2*publishers)
		assert.Equal(t, 1, turns)
		wg.Wait()
	})
}

// A row that the server refuses fails the publish of its caller, and no other that comes together with it.
func TestHandshakeOfARefusedRow(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		mysqltest.Exec(t, db.Pool(), "ALTER TABLE x ADD CONSTRAINT good CHECK (payload <> 'bad')")
		ctx := deadline(t)
		r, h := consumersTurn(ctx, t, db)

		const publishers = 5
		var good []<-chan error
		for i := range publishers {
			good = append(good, publishing(ctx, h, payload(i)))
		}
		bad := publishing(ctx, h, Message{Payload: []byte("bad")})
		require.Eventually(t, func() bool { return inTurn() == publishers+1 }, 30*time.Second, 10*time.Millisecond)
		all, _, err := r.read(ctx, publishers)
		require.NoError(t, err)
		assert.Len(t, all, publishers)
		for _, published := range good {
			assert.NoError(t, mysqltest.Receive(t, published))
		}
		assert.Error(t, mysqltest.Receive(t, bad))
	})
}

// inTurn returns how many callers of Publish wait for their turn in this process; only one test at a time may have some.
func inTurn() int {
	all := make([]byte, 16<<20)
	all = all[:runtime.Stack(all, true)]
	return len(regexp.MustCompile(`(?m)^goroutine \d+ \[select.*\]:\n.*\(\*handshake\)\.publish\(`).FindAll(all, -1))
}

// publishing publishes in a goroutine and sends the result.
func publishing(ctx context.Context, h *running, messages ...Message) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := h.Publish(ctx, messages...)
		done <- err
	}()
	return done
}

// An idle producer sends only the touches that keep its lock. If no
// consumer takes a turn, it stops repeating the turn after a few times.
func TestHandshakeIdleCostsNoStatement(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		db := topicOn(t, own, "x")
		p, err := New(db, "x", Options{Mode: modeHandshake})
		require.NoError(t, err)
		h := p.handshake
		h.rests = mysqltest.Size(128*time.Millisecond, 256*time.Millisecond, againLast)
		_, err = runIt(t, p).Publish(t.Context(), Message{})
		require.NoError(t, err)
		before := own.Questions(t)
		looks := uint64(0)
		require.Eventually(t, func() bool { // it rests: 1 ms, 2 ms, ..., and no turn after that
			begun := own.Questions(t)
			<-time.After(h.rests + time.Second) // longer than the longest wait, and shorter than the time between touches
			now := own.Questions(t)
			looks += 2
			assert.Less(t, now-before-looks, uint64(20))
			return now-begun-1 == 0
		}, 30*time.Second, 10*time.Millisecond)
	})
}
