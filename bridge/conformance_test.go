package bridge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/brokertest"
)

// patience limits every wait of a test.
const patience = time.Minute

// target is a destination for the conformance suite. conform makes a Target of it.
type target struct {
	url func(topic string) string
	// destination is used instead of url if it is set.
	destination func(topic string) *Destination
	refused     string                                    // a URL with wrong credentials; empty if the destination has none
	read        func(t *testing.T, topic string) []stored // the stored messages, oldest first
	stop        func()                                    // ends the destination as a crash does
	restart     func()
	// freeze makes the destination neither answer nor read until thaw is called.
	freeze  func(topic string) (thaw func())
	held    int  // Target.Held
	dedupes bool // Target.Deduplicates
	large   int  // Target.TooLarge
	atSend  bool // Target.ConnectsOnSend
}

// stored is a message that the destination has stored.
type stored struct {
	id      string // MessageID
	payload string
	trace   string // the header "traceparent"
}

func (s stored) Fields() (id, payload, trace string) { return s.id, s.payload, s.trace }

// Conform runs package sinktest's suite. The external test file sets it, since sinktest imports this package.
var Conform func(t *testing.T, to Target)

// Target has the fields of sinktest.Target.
type Target struct {
	Destination, Refused func(topic string) *Destination
	Read                 func(t *testing.T, topic string) []stored
	Secrets              []string
	Stop, Restart        func()
	Freeze               func(topic string) (thaw func())
	Held, TooLarge       int
	Deduplicates         bool
	ConnectsOnSend       bool
}

func conform(t *testing.T, to target) {
	t.Helper()
	exported := Target{
		Destination: func(topic string) *Destination { return to.parse(t, topic) },
		Read:        to.read, Secrets: []string{brokertest.Password, wrongPassword},
		Stop: to.stop, Restart: to.restart, Freeze: to.freeze, Held: to.held, TooLarge: to.large,
		Deduplicates: to.dedupes, ConnectsOnSend: to.atSend,
	}
	if to.refused != "" {
		exported.Refused = func(topic string) *Destination {
			d, err := Parse(to.refused, topic)
			require.NoError(t, err)
			return d
		}
	}
	Conform(t, exported)
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

// send sends all messages, in pages of the given size.
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

func requireTransient(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	require.NotContains(t, err.Error(), brokertest.Password)
	require.False(t, errors.As(err, new(*PoisonError)) || errors.As(err, new(*PermanentError)), "%T %v", err, err)
}

// once keeps the first copy of each message.
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

const wrongPassword = "wr0ng-w0rd"

// ofBroker returns the target of a broker that the test starts and kills.
func ofBroker(b *brokertest.Broker, query func(topic string) string) target {
	return target{
		url:     func(topic string) string { return b.URL(query(topic)) },
		refused: strings.Replace(b.URL(query("credentials")), brokertest.Password, wrongPassword, 1),
		stop:    b.Kill, restart: b.Restart, large: brokertest.MaxMessage + 1,
		freeze: func(string) func() { return b.Freeze() },
	}
}

func asError[T error](err error, target *T) bool { return errors.As(err, target) }
