package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsPublisher publishes messages to a stream and receives the stream's answers. It replaces the client's PublishMsgAsync, which
// allocates a future, a random subject in a map and a JSON text for each message, half of the cost of a message here.
type natsPublisher struct {
	*natsConn
	inbox   string         // the prefix of the answers' subjects; a message's number follows it
	inbound chan *nats.Msg // the answers
	stored  []byte         // the beginning of the answer to a stored message

	first    uint64       // the number of the page's first message
	answers  []natsAnswer // to the page's messages
	awaited  int          // how many answers have not arrived
	message  nats.Msg     // reused, because the client keeps nothing of it
	contents []string     // the values of the message's headers
}

// natsAnswer is a stream's answer to a message. The zero value means that none has arrived.
type natsAnswer struct {
	stored    bool
	duplicate uint64 // the sequence number of the stored message of which it is a duplicate
	err       error
}

// maxAwaited is how many messages may be unanswered. It is the size of inbound, because the client drops answers when inbound is full.
const maxAwaited = 1 << 14

func newNATSPublisher(c *natsConn, stream string) (*natsPublisher, error) {
	p := &natsPublisher{
		natsConn: c, inbox: c.conn.NewInbox() + ".", inbound: make(chan *nats.Msg, maxAwaited),
		stored: fmt.Appendf(nil, `{"stream":%q, "seq":`, stream),
	}
	p.message.Header = nats.Header{}
	_, err := c.conn.ChanSubscribe(p.inbox+"*", p.inbound)
	return p, err
}

// begin begins a page. Late answers to an earlier page have smaller numbers.
func (p *natsPublisher) begin(messages int) {
	p.first += uint64(len(p.answers))
	p.answers = append(p.answers[:0], make([]natsAnswer, messages)...)
	p.awaited = 0
}

// publish sends the page's message i.
func (p *natsPublisher) publish(ctx context.Context, i int, subject string, all []field, data []byte) error {
	for p.awaited == maxAwaited {
		if !p.receive(ctx) {
			return nats.ErrConnectionClosed
		}
	}
	m := &p.message
	m.Subject, m.Data = subject, data
	m.Reply = p.inbox + strconv.FormatUint(p.first+uint64(i), 10)
	clear(m.Header)
	p.contents = p.contents[:0]
	for _, f := range all {
		p.contents = append(p.contents, f.value)
	}
	for i, f := range all {
		m.Header[f.name] = p.contents[i : i+1 : i+1]
	}
	if err := p.conn.PublishMsg(m); err != nil {
		return err
	}
	p.awaited++
	return nil
}

// wait returns when all published messages have an answer, or when no further answer can arrive.
func (p *natsPublisher) wait(ctx context.Context) {
	for p.awaited > 0 {
		if !p.receive(ctx) {
			return
		}
	}
}

// receive waits for an answer. It reports whether one arrived.
func (p *natsPublisher) receive(ctx context.Context) bool {
	select { // usually there is one, and a select of one channel costs less
	case m := <-p.inbound:
		p.take(m)
		return true
	default:
	}
	select {
	case m := <-p.inbound:
		p.take(m)
	case <-p.gone:
		return false
	case <-ctx.Done():
		return false
	}
	return true
}

// take stores an answer. The first answer to a message counts, because every subscriber of the subject can answer.
func (p *natsPublisher) take(m *nats.Msg) {
	number, err := strconv.ParseUint(m.Subject[len(p.inbox):], 10, 64)
	if err != nil || number < p.first || number-p.first >= uint64(len(p.answers)) {
		return
	}
	if answer := &p.answers[number-p.first]; *answer == (natsAnswer{}) {
		*answer = p.read(m)
		p.awaited--
	}
}

func (p *natsPublisher) read(m *nats.Msg) natsAnswer {
	if p.saysStored(m.Data) {
		return natsAnswer{stored: true}
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" { // the subject has no subscriber
		return natsAnswer{err: jetstream.ErrNoStreamResponse}
	}
	var ack struct {
		jetstream.PubAck
		Error *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err == nil && ack.Error != nil:
		return natsAnswer{err: ack.Error}
	case err != nil || ack.Stream == "":
		return natsAnswer{err: jetstream.ErrInvalidJSAck}
	case ack.Duplicate:
		return natsAnswer{duplicate: ack.Sequence}
	}
	return natsAnswer{stored: true}
}

// saysStored reports whether the answer is exactly the server's text for a stored message. Any other answer is parsed as JSON.
func (p *natsPublisher) saysStored(text []byte) bool {
	rest, begins := bytes.CutPrefix(text, p.stored)
	sequence, ends := bytes.CutSuffix(rest, []byte("}"))
	return begins && ends && len(sequence) > 0 && len(bytes.Trim(sequence, "0123456789")) == 0
}
