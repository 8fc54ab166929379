package bridge

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// answeredPublisher returns a publisher without a connection that waits for the answers to a page.
func answeredPublisher(messages int) *natsPublisher {
	p := &natsPublisher{inbox: "inbox.", stored: []byte(`{"stream":"orders", "seq":`)}
	p.begin(messages)
	p.awaited = messages
	return p
}

func answerOf(number int, text string) *nats.Msg {
	return &nats.Msg{Subject: fmt.Sprint("inbox.", number), Data: []byte(text)}
}

// These are the answers of a stream, and of other programs that listen to the subject.
func TestNATSAnswers(t *testing.T) {
	mysqltest.Once(t)
	nobody := answerOf(0, "")
	nobody.Header = nats.Header{"Status": {"503"}}
	for _, c := range []struct {
		answer *nats.Msg
		want   natsAnswer
	}{
		{answerOf(0, `{"stream":"orders", "seq":1234567890}`), natsAnswer{stored: true}},
		{answerOf(0, `{"stream":"orders","seq":17}`), natsAnswer{stored: true}},
		{answerOf(0, `{"stream":"orders", "seq":17,"domain":"hub"}`), natsAnswer{stored: true}},
		{answerOf(0, `{"stream":"mirrored", "seq":17}`), natsAnswer{stored: true}},
		{answerOf(0, `{"stream":"orders", "seq":17,"duplicate": true}`), natsAnswer{duplicate: 17}},
		{answerOf(0, `{"stream":"orders", "seq":}`), natsAnswer{err: jetstream.ErrInvalidJSAck}},
		{answerOf(0, `{"stream":"orders", "seq":17`), natsAnswer{err: jetstream.ErrInvalidJSAck}},
		{answerOf(0, `{"seq":17}`), natsAnswer{err: jetstream.ErrInvalidJSAck}},
		{answerOf(0, `thank you`), natsAnswer{err: jetstream.ErrInvalidJSAck}},
		{answerOf(0, ``), natsAnswer{err: jetstream.ErrInvalidJSAck}},
		{nobody, natsAnswer{err: jetstream.ErrNoStreamResponse}},
		{
			answerOf(0, `{"error":{"code":400,"err_code":10054,"description":"too large"},"stream":"orders","seq":0}`),
			natsAnswer{err: &jetstream.APIError{Code: 400, ErrorCode: codeTooLarge, Description: "too large"}},
		},
	} {
		p := answeredPublisher(1)
		p.take(c.answer)
		require.Equal(t, c.want, p.answers[0], "%s", c.answer.Data)
		require.Zero(t, p.awaited)
	}
}

// A late answer to a page that Send gave up does not count for a message of a later page. A second answer to the same message
// does not count either.
func TestNATSLateAnswers(t *testing.T) {
	mysqltest.Once(t)
	stored := `{"stream":"orders", "seq":1}`
	p := answeredPublisher(3)
	p.take(answerOf(1, stored))
	p.begin(2)
	p.awaited = 2
	for _, number := range []int{0, 1, 2, 5} { // numbers of the page before, and of no page
		p.take(answerOf(number, stored))
	}
	p.take(&nats.Msg{Subject: "inbox.x", Data: []byte(stored)})
	require.Equal(t, []natsAnswer{{}, {}}, p.answers)
	require.Equal(t, 2, p.awaited)
	p.take(answerOf(4, stored))
	p.take(answerOf(4, "and from me"))
	require.Equal(t, []natsAnswer{{}, {stored: true}}, p.answers)
	require.Equal(t, 1, p.awaited)
}

// Send takes more messages at once than the buffer for answers holds.
func TestNATSManyAtOnce(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.NATS(t)
	all := messages("t", 1, maxAwaited+1000)
	send(t, natsTarget(b, "").open(t, "t"), all, len(all))
	require.Equal(t, wanted(all), readStream(t, b, "t"))
}
