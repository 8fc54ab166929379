package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/brokertest"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// target is a destination for the conformance suite.
type target struct {
	url func(topic string) string
	// destination is in the place of a URL.
	destination func(topic string) *Destination
	refused     string                                    // a URL whose credentials are wrong; empty when there are none
	read        func(t *testing.T, topic string) []stored // what the destination has, in its order
	stop        func()                                    // the destination goes away, as in a crash
	restart     func()
	// freeze makes the destination neither answer nor read until thaw is called.
	freeze  func(topic string) (thaw func())
	held    int  // bytes of a message, of which it does not take 50 while it is frozen; 0 is 250,000
	dedupes bool // it tells what it has
	large   int  // bytes of a payload that it refuses; 0 when it takes all
	// atSend tells that Open finds out nothing.
	atSend bool
}

// stored is a message at its destination.
type stored struct {
	id      string // MessageID, as the destination has it
	payload string
	trace   string // the header "traceparent"
}

// conform runs the obligations of Sink's comment.
func conform(t *testing.T, to target) {
	t.Run("order", to.testOrder)
	t.Run("restart", to.testRestart)
	t.Run("other row", to.testOtherRow)
	t.Run("away", to.testAway)
	t.Run("too large", to.testTooLarge)
	t.Run("headers", to.testHeaders)
	t.Run("close", to.testClose)
	t.Run("frozen", to.testFrozen)
	t.Run("credentials", to.testCredentials)
}

func message(topic string, id int) consumer.Message {
	return consumer.Message{
		ID: uint64(id), Topic: topic, CreatedAt: time.Date(2026, 1, 31, 8, 9, 10, 1000, time.UTC),
		Headers: map[string]string{"traceparent": fmt.Sprintf("00-%032d-%016d-01", id, id)},
		Payload: fmt.Appendf(nil, `{"order":%d}`, id),
	}
}

func messages(topic string, from, to int) (all []consumer.Message) {
	for id := from; id <= to; id++ {
		all = append(all, message(topic, id))
	}
	return all
}

func wanted(all []consumer.Message) (want []stored) {
	for _, m := range all {
		want = append(want, stored{MessageID(m), string(m.Payload), m.Headers["traceparent"]})
	}
	return want
}

func (to target) parse(t *testing.T, topic string) *Destination {
	t.Helper()
	if to.destination != nil {
		return to.destination(topic)
	}
	d, err := Parse(to.url(topic), topic)
	require.NoError(t, err)
	require.NotContains(t, d.Name, brokertest.Password)
	return d
}

func (to target) open(t *testing.T, topic string) Sink {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sink, err := to.parse(t, topic).Open(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sink.Close()) })
	return sink
}

// send sends all of the messages in pages of a size.
func send(t *testing.T, sink Sink, all []consumer.Message, size int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(all) > 0 {
		n := min(size, len(all))
		confirmed, err := sink.Send(ctx, all[:n])
		require.NoError(t, err)
		require.Equal(t, n, confirmed)
		all = all[n:]
	}
}

// Messages come in their order, whole, and with their ids.
func (to target) testOrder(t *testing.T) {
	const topic = "order"
	sink := to.open(t, topic)
	all := messages(topic, 1, 300)
	all[7].Payload = []byte{}
	all[8].Payload = []byte("\x00\xff\xfe'\"\\\n\r\x80")
	all[9].Payload = bytes.Repeat([]byte("long "), 40_000)
	send(t, sink, all[:1], 1)
	send(t, sink, all[1:], 64)
	require.Equal(t, wanted(all), to.read(t, topic))
}

// A bridge that is started again sends again what it did not know to be there. What
// comes twice has the same id, and a destination that can tell has it once.
func (to target) testRestart(t *testing.T) {
	const topic = "restart"
	first := to.open(t, topic)
	send(t, first, messages(topic, 1, 20), 20)
	require.NoError(t, first.Close())
	send(t, to.open(t, topic), messages(topic, 11, 30), 20)
	got := to.read(t, topic)
	if to.dedupes {
		require.Equal(t, wanted(messages(topic, 1, 30)), got)
		return
	}
	require.Equal(t, wanted(append(messages(topic, 1, 20), messages(topic, 11, 30)...)), got)
}

// A row that has the id of another one, of a table that was emptied, say, is not taken for
// sent by a destination that tells what it has.
func (to target) testOtherRow(t *testing.T) {
	if !to.dedupes {
		t.Skip("it takes it")
	}
	const topic = "other"
	first := to.open(t, topic)
	send(t, first, messages(topic, 1, 5), 5)
	require.NoError(t, first.Close())
	others := messages(topic, 1, 2)
	for i := range others {
		others[i].CreatedAt = others[i].CreatedAt.Add(time.Second)
	}
	n, err := to.open(t, topic).Send(t.Context(), others)
	require.Zero(t, n)
	require.ErrorAs(t, err, new(*PermanentError))
	require.ErrorContains(t, err, "other:1 is there already")
	require.Equal(t, wanted(messages(topic, 1, 5)), to.read(t, topic))
}

// A destination that is away is an error that is not about the message, and when it is
// back nothing is missing.
func (to target) testAway(t *testing.T) {
	if to.stop == nil {
		t.Skip("it can't go away")
	}
	const topic = "away"
	d := to.parse(t, topic)
	sink := to.open(t, topic)
	send(t, sink, messages(topic, 1, 10), 10)
	to.stop()
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second) // Kafka's client would try for ever
	_, err := sink.Send(short, messages(topic, 11, 20))
	cancel()
	requireTransient(t, err)
	require.NoError(t, sink.Close())

	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		other, err := d.Open(ctx)
		if to.atSend {
			require.NoError(t, err)
			_, err = other.Send(ctx, messages(topic, 11, 20))
			require.NoError(t, other.Close())
		}
		cancel()
		requireTransient(t, err)
	}
	to.restart()
	send(t, to.open(t, topic), messages(topic, 11, 30), 20)
	require.Equal(t, wanted(messages(topic, 1, 30)), to.read(t, topic))
}

func requireTransient(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	require.NotContains(t, err.Error(), brokertest.Password)
	require.False(t, errors.As(err, new(*PoisonError)) || errors.As(err, new(*PermanentError)), "%T %v", err, err)
}

// A message that is too large is refused alone, by a PoisonError, at the latest when it
// is sent alone; the others go on.
func (to target) testTooLarge(t *testing.T) {
	if to.large == 0 {
		t.Skip("it takes any size")
	}
	const topic = "large"
	d := to.parse(t, topic)
	all := messages(topic, 1, 9)
	all[4].Payload = bytes.Repeat([]byte("x"), to.large)
	sink, err := d.Open(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, sink.Close()) }()
	size, refused := len(all), 0
	for rest := all; len(rest) > 0; {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		n, err := sink.Send(ctx, rest[:min(size, len(rest))])
		cancel()
		rest = rest[n:]
		var p *PoisonError
		switch {
		case errors.As(err, &p):
			require.Equal(t, uint64(5), p.ID)
			require.Equal(t, uint64(5), rest[0].ID)
			rest, refused = rest[1:], refused+1
		case err != nil: // whose fault it is it can't tell yet
			require.Greater(t, size, 1, "%v", err)
			size = 1
		}
		if err != nil {
			require.NoError(t, sink.Close())
			sink, err = d.Open(t.Context())
			require.NoError(t, err)
		}
	}
	require.Equal(t, 1, refused)
	want, got := wanted(append(messages(topic, 1, 4), messages(topic, 6, 9)...)), to.read(t, topic)
	if !to.dedupes { // those before and after it may have come twice
		got = once(got)
	}
	require.Equal(t, want, got)
}

// once leaves the first of each message.
func once(all []stored) (first []stored) {
	seen := map[string]bool{}
	for _, s := range all {
		if !seen[s.id] {
			first = append(first, s)
		}
		seen[s.id] = true
	}
	return first
}

// A row's headers are no orders to the broker, whatever their names, and none is in
// the way of the message.
func (to target) testHeaders(t *testing.T) {
	const topic = "headers"
	m := message(topic, 1)
	for _, name := range []string{
		"", " ", "\x00", "a\r\nb", "ü", "Nats-Rollup", "Nats-Expected-Last-Sequence", "nats-msg-id", "CC", "BCC", "x-delay",
		"Content-Length", "Transfer-Encoding", "Host", "Authorization", "ce-id", "id", "source", "type", "specversion", "payload",
		"mqnotify-id", "webhook-id", "\x7f", "\u0085", "\ufffe", "😀\n", strings.Repeat("n", 300),
	} {
		m.Headers[name] = "all" // which Nats-Rollup, for one, would obey
	}
	m.Headers["value"] = "value\r\nX-Other: 1\x00é"
	m.Headers["plain"] = "yes"
	send(t, to.open(t, topic), []consumer.Message{m, message(topic, 2)}, 2)
	require.Equal(t, wanted([]consumer.Message{m, message(topic, 2)}), to.read(t, topic))
}

// Close may come at any time, from many at once, and twice; it ends what is under way.
func (to target) testClose(t *testing.T) {
	const topic = "close"
	sink := to.open(t, topic)
	send(t, sink, messages(topic, 1, 1), 1)
	var sending sync.WaitGroup
	begun := make(chan struct{})
	sending.Go(func() {
		for id := 2; ; id += 10 {
			if _, err := sink.Send(context.WithoutCancel(t.Context()), messages(topic, id, id+9)); err != nil {
				return
			}
			if id == 2 {
				close(begun)
			}
		}
	})
	select {
	case <-begun:
	case <-time.After(patience):
		t.Fatal("it sends nothing")
	}
	var closing sync.WaitGroup
	for range 8 {
		closing.Go(func() {
			if err := sink.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closing.Wait()
	sending.Wait()
	require.NoError(t, sink.Close())
	_, err := sink.Send(t.Context(), messages(topic, 1, 1))
	require.ErrorIs(t, err, ErrClosed)
	unused, err := to.parse(t, topic).Open(t.Context())
	require.NoError(t, err)
	require.NoError(t, unused.Close())
}

// Credentials that are refused are a PermanentError, and are not told.
func (to target) testCredentials(t *testing.T) {
	if to.refused == "" {
		t.Skip("it has none")
	}
	d, err := Parse(to.refused, "credentials")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sink, err := d.Open(ctx)
	if to.atSend {
		require.NoError(t, err)
		_, err = sink.Send(ctx, messages("credentials", 1, 1))
		require.NoError(t, sink.Close())
	}
	var permanent *PermanentError
	require.ErrorAs(t, err, &permanent)
	require.NotContains(t, err.Error(), wrongPassword)
	require.NotContains(t, d.Name, wrongPassword)
}

const wrongPassword = "wr0ng-w0rd"

// ofBroker is what a target has of its broker.
func ofBroker(b *brokertest.Broker, query func(topic string) string) target {
	return target{
		url:     func(topic string) string { return b.URL(query(topic)) },
		refused: strings.Replace(b.URL(query("credentials")), brokertest.Password, wrongPassword, 1),
		stop:    b.Kill, restart: b.Restart, large: brokertest.MaxMessage + 1,
		freeze: func(string) func() { return b.Freeze() },
	}
}

func asError[T error](err error, target *T) bool { return errors.As(err, target) }
