// Package sinktest tests that a bridge.Sink keeps the promises in that interface's comment. Every sink of package bridge passes it. Run
// it on your own:
//
//	func TestSink(t *testing.T) {
//		sinktest.Run(t, sinktest.Target{
//			Destination: func(topic string) *bridge.Destination { return mine.Destination(topic) },
//			Read:        func(t *testing.T, topic string) []sinktest.Stored { return readBack(t, topic) },
//		})
//	}
package sinktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/bridge"
	"github.com/mqnotify/mqnotify/consumer"
)

// Target is a destination, with functions that act on it. Destination and Read are required. Run skips the tests that need a field that
// is not set.
//
// Run calls the functions on one goroutine, and uses the topics "order", "restart", "other", "away", "large",
// "headers", "close" and "frozen", each of which has to be empty before.
type Target struct {
	// Destination returns the topic's destination. It may be called several times for a topic, and returns
	// the same destination each time.
	Destination func(topic string) *bridge.Destination
	// Read returns the messages that the destination has stored for the topic, oldest first.
	Read func(t *testing.T, topic string) []Stored

	// Refused returns the topic's destination with credentials that it refuses.
	Refused func(topic string) *bridge.Destination
	// Secrets are texts that no error and no Destination.Name may contain: passwords and keys, of Refused too.
	Secrets []string

	// Stop ends the destination as a crash does, and Restart starts it again with the same data. Set both or none.
	Stop, Restart func()
	// Freeze stops the destination from answering and from reading the topic's messages until thaw is called.
	Freeze func(topic string) (thaw func())
	// Held is a payload size in bytes: 50 such messages must exceed the buffers of a connection to a frozen destination. 0 means
	// 250,000.
	Held int

	// TooLarge is the size in bytes of a payload that the destination refuses. 0 means that it accepts any size.
	TooLarge int
	// Deduplicates is set if the destination recognizes the MessageID of a stored message.
	Deduplicates bool
	// ConnectsOnSend is set if Open does not connect, so that Send is the first to report that the destination can't be reached or
	// refuses the credentials.
	ConnectsOnSend bool
}

// Stored is a message that the destination has stored.
type Stored struct {
	ID      string // bridge.MessageID
	Payload string
	Trace   string // the header "traceparent"
}

// patience limits every wait of Run.
const patience = time.Minute

// Run tests each obligation in a subtest of its own, one after another.
func Run(t *testing.T, to Target) {
	t.Helper()
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

// messages returns the messages with these ids, the last included.
func messages(topic string, from, to int) (all []consumer.Message) {
	for id := from; id <= to; id++ {
		all = append(all, message(topic, id))
	}
	return all
}

// wanted returns the messages as the destination should have them.
func wanted(all []consumer.Message) (want []Stored) {
	for _, m := range all {
		want = append(want, Stored{bridge.MessageID(m), string(m.Payload), m.Headers["traceparent"]})
	}
	return want
}

func (to Target) open(t *testing.T, topic string) bridge.Sink {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d := to.Destination(topic)
	to.requireNoSecret(t, d.Name)
	sink, err := d.Open(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sink.Close()) })
	return sink
}

func (to Target) requireNoSecret(t *testing.T, text string) {
	t.Helper()
	for _, secret := range to.Secrets {
		require.NotContains(t, text, secret)
	}
}

// send sends all messages, in pages of a size.
func send(t *testing.T, sink bridge.Sink, all []consumer.Message, size int) {
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

// The destination has all messages, in their order, unchanged and with their ids.
func (to Target) testOrder(t *testing.T) {
	const topic = "order"
	sink := to.open(t, topic)
	all := messages(topic, 1, 300)
	all[7].Payload = []byte{}
	all[8].Payload = []byte("\x00\xff\xfe'\"\\\n\r\x80")
	all[9].Payload = bytes.Repeat([]byte("long "), 40_000)
	send(t, sink, all[:1], 1)
	send(t, sink, all[1:], 64)
	require.Equal(t, wanted(all), to.Read(t, topic))
}

// A bridge that is started again repeats messages whose confirmation it did not store. They have the same ids as before, so that a
// destination that deduplicates stores each once.
func (to Target) testRestart(t *testing.T) {
	const topic = "restart"
	first := to.open(t, topic)
	send(t, first, messages(topic, 1, 20), 20)
	require.NoError(t, first.Close())
	send(t, to.open(t, topic), messages(topic, 11, 30), 20)
	got := to.Read(t, topic)
	if to.Deduplicates {
		require.Equal(t, wanted(messages(topic, 1, 30)), got)
		return
	}
	require.Equal(t, wanted(append(messages(topic, 1, 20), messages(topic, 11, 30)...)), got)
}

// A destination that deduplicates recognizes another row with the same id, for example of a table that was emptied.
func (to Target) testOtherRow(t *testing.T) {
	if !to.Deduplicates {
		t.Skip("Target.Deduplicates is not set")
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
	require.ErrorAs(t, err, new(*bridge.PermanentError))
	require.ErrorContains(t, err, "other:1 is there already")
	require.Equal(t, wanted(messages(topic, 1, 5)), to.Read(t, topic))
}

// The error of a destination that can't be reached is not about the message. Nothing is missing when the
// destination is back.
func (to Target) testAway(t *testing.T) {
	if to.Stop == nil {
		t.Skip("Target.Stop is not set")
	}
	const topic = "away"
	d := to.Destination(topic)
	sink := to.open(t, topic)
	send(t, sink, messages(topic, 1, 10), 10)
	to.Stop()
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second) // Kafka's client tries until its context ends
	_, err := sink.Send(short, messages(topic, 11, 20))
	cancel()
	to.requireTransient(t, err)
	require.NoError(t, sink.Close())

	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		other, err := d.Open(ctx)
		if to.ConnectsOnSend {
			require.NoError(t, err)
			_, err = other.Send(ctx, messages(topic, 11, 20))
			require.NoError(t, other.Close())
		}
		cancel()
		to.requireTransient(t, err)
	}
	to.Restart()
	send(t, to.open(t, topic), messages(topic, 11, 30), 20)
	require.Equal(t, wanted(messages(topic, 1, 30)), to.Read(t, topic))
}

func (to Target) requireTransient(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	to.requireNoSecret(t, err.Error())
	require.False(t, errors.As(err, new(*bridge.PoisonError)) || errors.As(err, new(*bridge.PermanentError)), "%T %v", err, err)
}

// A message that is too large is refused by a PoisonError, at the latest when it is sent alone. The other
// messages arrive.
func (to Target) testTooLarge(t *testing.T) {
	if to.TooLarge == 0 {
		t.Skip("Target.TooLarge is not set")
	}
	const topic = "large"
	d := to.Destination(topic)
	all := messages(topic, 1, 9)
	all[4].Payload = bytes.Repeat([]byte("x"), to.TooLarge)
	sink, err := d.Open(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, sink.Close()) }()
	size, refused := len(all), 0
	for rest := all; len(rest) > 0; {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		n, err := sink.Send(ctx, rest[:min(size, len(rest))])
		cancel()
		rest = rest[n:]
		var p *bridge.PoisonError
		switch {
		case errors.As(err, &p):
			require.Equal(t, uint64(5), p.ID)
			require.Equal(t, uint64(5), rest[0].ID)
			rest, refused = rest[1:], refused+1
		case err != nil: // the sink can't say yet which message is refused
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
	want, got := wanted(append(messages(topic, 1, 4), messages(topic, 6, 9)...)), to.Read(t, topic)
	if !to.Deduplicates { // the messages around it may have been stored twice
		got = once(got)
	}
	require.Equal(t, want, got)
}

// once keeps the first copy of each message.
func once(all []Stored) (first []Stored) {
	seen := map[string]bool{}
	for _, s := range all {
		if !seen[s.ID] {
			first = append(first, s)
		}
		seen[s.ID] = true
	}
	return first
}

// No header of a row, whatever its name, is an instruction to the destination, or prevents the message from being stored.
func (to Target) testHeaders(t *testing.T) {
	const topic = "headers"
	m := message(topic, 1)
	for _, name := range []string{
		"", " ", "\x00", "a\r\nb", "ü", "Nats-Rollup", "Nats-Expected-Last-Sequence", "nats-msg-id", "CC", "BCC", "x-delay",
		"Content-Length", "Transfer-Encoding", "Host", "Authorization", "ce-id", "id", "source", "type", "specversion", "payload",
		"mqnotify-id", "webhook-id", "\x7f", "\u0085", "\ufffe", "😀\n", strings.Repeat("n", 300),
	} {
		m.Headers[name] = "all" // Nats-Rollup, for example, obeys this value
	}
	m.Headers["value"] = "value\r\nX-Other: 1\x00é"
	m.Headers["plain"] = "yes"
	send(t, to.open(t, topic), []consumer.Message{m, message(topic, 2)}, 2)
	require.Equal(t, wanted([]consumer.Message{m, message(topic, 2)}), to.Read(t, topic))
}
