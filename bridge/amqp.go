package bridge

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// amqpDestination is an exchange, or a queue, to which the default exchange delivers.
type amqpDestination struct {
	uri           string
	tls           *tls.Config
	exchange, key string
	queue         string // open makes it if it does not exist; empty with an exchange
	arguments     amqp.Table
	was           atomic.Bool // the broker has accepted a connection before
	found         atomic.Bool // the exchange or the queue was there before
}

// amqpSink publishes persistent messages with the MessageID as message-id. They are mandatory: the broker returns a message that it
// can't route to a queue, and Send fails. A confirm means that a queue has stored the message.
type amqpSink struct {
	*amqpDestination
	conn    *amqp.Connection
	channel *amqp.Channel
	gone    chan struct{} // closed with the channel
	noted   chan struct{} // watch receives when all messages returned so far are in returned
	why     atomic.Pointer[amqp.Error]
	closed  atomic.Bool

	mu       sync.Mutex
	returned map[string]amqp.Return // by message-id
}

func parseAMQP(p *params) *Destination {
	d := newAMQP(p)
	d.exchange = p.text("exchange", "")
	d.queue = p.text("queue", "")
	if d.exchange != "" && d.queue != "" {
		p.note("exchange= and queue=: give one of them")
	}
	if d.exchange == "" && d.queue == "" {
		d.queue = p.topic
	}
	d.key = p.text("key", p.topic)
	if d.exchange == "" {
		d.key = d.queue
	}
	if kind := p.text("type", ""); kind != "" {
		d.arguments = amqp.Table{"x-queue-type": kind}
	}
	return &Destination{InFlight: 500, Open: d.open}
}

// newAMQP reads the parameters of a connection: amqp://user:password@host:5672/vhost.
func newAMQP(p *params) *amqpDestination {
	u := url.URL{Scheme: p.url.Scheme, User: p.url.User, Path: p.url.Path, RawPath: p.url.RawPath}
	port := "5672"
	if u.Scheme == "amqps" {
		port = "5671"
	}
	u.Host = p.hostPort(port)
	u.Path = cmp.Or(u.Path, "/")
	return &amqpDestination{uri: u.String(), tls: p.tls(u.Scheme == "amqps", "write amqps://")}
}

// connect opens a connection and a channel.
func (d *amqpDestination) connect(ctx context.Context) (*amqp.Connection, *amqp.Channel, error) {
	config := amqp.Config{Properties: amqp.Table{"connection_name": "mqnotify"}, Heartbeat: 10 * time.Second, TLSClientConfig: d.tls}
	stop := func() bool { return true }
	defer func() { stop() }()
	config.Dial = func(network, addr string) (net.Conn, error) {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, network, addr)
		if err == nil { // ctx can interrupt the handshake
			stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		if deadline, has := ctx.Deadline(); err == nil && has {
			err = conn.SetDeadline(deadline)
		}
		return conn, err
	}
	conn, err := amqp.DialConfig(d.uri, config)
	if err != nil {
		var said *amqp.Error
		if errors.As(err, &said) && said.Code == amqp.FrameError { // the client's error also for a connection that ended
			err = fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
		}
		// The client reports a connection that ends in the handshake as a refusal. If the broker has accepted the credentials before,
		// it more likely died.
		if d.was.Load() && (errors.Is(err, amqp.ErrCredentials) || errors.Is(err, amqp.ErrVhost)) {
			return nil, nil, fmt.Errorf("connect: the connection ended in the handshake, or the broker refuses credentials that it accepted before: %w", err)
		}
		return nil, nil, amqpError("connect", err)
	}
	channel, err := conn.Channel()
	if err != nil {
		_ = conn.Close()
		return nil, nil, amqpError("open a channel", err)
	}
	d.was.Store(true)
	return conn, channel, nil
}

// amqpError makes a PermanentError of a refusal that no retry can change.
func amqpError(verb string, err error) error {
	var said *amqp.Error
	if errors.Is(err, amqp.ErrCredentials) || errors.Is(err, amqp.ErrSASL) || errors.Is(err, amqp.ErrVhost) ||
		errors.As(err, &said) && said.Code == amqp.AccessRefused {
		return permanent(fmt.Errorf("%s: refused: %w", verb, err))
	}
	return fmt.Errorf("%s: %w", verb, err)
}

func (d *amqpDestination) open(ctx context.Context) (Sink, error) {
	conn, channel, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.CloseDeadline(time.Now()) })() // this ends a wait for a frozen broker
	s := &amqpSink{amqpDestination: d, conn: conn, channel: channel, gone: make(chan struct{}), noted: make(chan struct{}), returned: map[string]amqp.Return{}}
	if err := s.prepare(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	d.found.Store(true)
	closed := s.channel.NotifyClose(make(chan *amqp.Error, 1))
	returns := s.channel.NotifyReturn(make(chan amqp.Return))
	go s.watch(closed, returns)
	return s, nil
}

// prepare finds the queue or the exchange, makes the queue if it does not exist, and asks for confirms.
func (s *amqpSink) prepare(ctx context.Context) error {
	var err error
	if s.exchange == "" {
		err = s.findQueue(ctx)
	} else if err = s.channel.ExchangeDeclarePassive(s.exchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		err = s.prepareError(fmt.Sprintf("find exchange %q", s.exchange), err)
	}
	if err != nil {
		return err
	}
	if err := s.channel.Confirm(false); err != nil {
		return amqpError("ask for confirms", err)
	}
	return nil
}

// amqpSettles is how long the sink waits after it has made a queue. RabbitMQ (3.10) answers before the queue's definition, of any
// type, is on the disk. If it is killed (kill -9) within 0.3 s, it sometimes restarts without the queue, and the messages that the
// queue had confirmed are lost. Erlang's disk_log writes its buffer within 2 s.
const amqpSettles = 3 * time.Second

// findQueue makes the queue if it does not exist. An existing queue may have any type, unless the URL names one.
func (s *amqpSink) findQueue(ctx context.Context) (err error) {
	if _, err = s.channel.QueueDeclarePassive(s.queue, true, false, false, false, nil); !notFound(err) {
		if err == nil && s.arguments != nil {
			err = s.declareQueue() // fails if the type differs
		} else if err != nil {
			err = s.prepareError(fmt.Sprintf("find queue %q", s.queue), err)
		}
		return err
	}
	if s.channel, err = s.conn.Channel(); err != nil { // the answer "not found" has closed the other channel
		return amqpError("open a channel", err)
	}
	if err := s.declareQueue(); err != nil {
		return err
	}
	return server.Pause(ctx, amqpSettles)
}

func (s *amqpSink) declareQueue() error {
	if _, err := s.channel.QueueDeclare(s.queue, true, false, false, false, s.arguments); err != nil {
		return s.prepareError(fmt.Sprintf("declare queue %q", s.queue), err)
	}
	return nil
}

// prepareError makes a PermanentError of a queue with another type and of an exchange that is missing.
func (d *amqpDestination) prepareError(verb string, err error) error {
	var said *amqp.Error
	if d.missing(err) || errors.As(err, &said) && said.Code == amqp.PreconditionFailed {
		return permanent(fmt.Errorf("%s: %w", verb, err))
	}
	return amqpError(verb, err)
}

// missing reports whether err means that the exchange or the queue was never there. RabbitMQ gives the same answer for a durable queue
// whose node is down, so a queue that was found before may come back.
func (d *amqpDestination) missing(err error) bool { return notFound(err) && !d.found.Load() }

func notFound(err error) bool {
	var said *amqp.Error
	return errors.As(err, &said) && said.Code == amqp.NotFound
}

// watch collects the returned messages until the channel ends. The client's reader delivers a message's return before its confirm.
func (s *amqpSink) watch(closed <-chan *amqp.Error, returns <-chan amqp.Return) {
	defer close(s.gone)
	for returns != nil {
		select {
		case r, open := <-returns:
			if !open {
				returns = nil
				continue
			}
			s.mu.Lock()
			s.returned[r.MessageId] = r
			s.mu.Unlock()
		case <-s.noted:
		}
	}
	if err, open := <-closed; open {
		s.why.Store(err)
	}
}

func (s *amqpSink) Send(ctx context.Context, messages []consumer.Message) (int, error) {
	if s.closed.Load() {
		return 0, notify.ErrClosed
	}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })() // this ends a write that hangs
	confirms := make([]*amqp.DeferredConfirmation, 0, len(messages))
	var failed error
	for _, m := range messages {
		publishing := s.publishing(m)
		if size, most := headerSize(publishing.Headers), s.conn.Config.FrameSize; most > 0 && size > most {
			failed = poison(m, "its headers have %d bytes, and the broker's limit for a frame is %d", size, most)
			break
		}
		confirm, err := s.channel.PublishWithDeferredConfirm(s.exchange, s.key, true, false, publishing)
		if err != nil {
			failed = err
			break
		}
		confirms = append(confirms, confirm)
	}
	confirmed, err := s.await(ctx, messages, confirms)
	if err == nil && failed != nil {
		err = s.explain(messages[confirmed:], failed)
	}
	if i, r, back := s.firstReturned(messages[:confirmed]); back {
		return i, fmt.Errorf("the broker has no queue for it: %d %s", r.ReplyCode, r.ReplyText)
	}
	return confirmed, err
}

// await waits for the confirms, and returns how many messages were confirmed before the first that was not.
func (s *amqpSink) await(ctx context.Context, messages []consumer.Message, confirms []*amqp.DeferredConfirmation) (int, error) {
	for i, confirm := range confirms {
		select {
		case <-confirm.Done():
		case <-s.gone:
		case <-ctx.Done():
			return i, context.Cause(ctx)
		}
		if !confirm.Acked() {
			return i, s.explain(messages[i:], errors.New("the broker could not store it (nack)"))
		}
	}
	return len(confirms), nil
}

func (s *amqpSink) publishing(m consumer.Message) amqp.Publishing {
	headers := amqp.Table{}
	for _, f := range fields(m, amqpHeader) {
		headers[f.name] = f.value
	}
	return amqp.Publishing{
		MessageId: MessageID(m), DeliveryMode: amqp.Persistent, Timestamp: m.CreatedAt,
		AppId: "mqnotify", Type: m.Topic, Headers: headers, Body: m.Payload,
	}
}

// headerSize returns an upper estimate of the bytes of a message's frame of headers, which the client does not split.
func headerSize(headers amqp.Table) int {
	size := 2 << 10 // the other properties
	for name, value := range headers {
		text, _ := value.(string)
		size += 8 + len(name) + len(text)
	}
	return size
}

// amqpHeader reports whether a header may keep its name. CC and BCC would send copies to other queues, and names with x- are the
// broker's.
func amqpHeader(name, _ string) bool {
	return name != "" && len(name) < 128 && !strings.EqualFold(name, "cc") && !strings.EqualFold(name, "bcc") && !hasPrefixFold(name, "x-")
}

// firstReturned returns the first of the messages that the broker returned.
func (s *amqpSink) firstReturned(messages []consumer.Message) (int, amqp.Return, bool) {
	// watch receives only after it has collected the messages that were returned before the last confirm.
	select {
	case s.noted <- struct{}{}:
	case <-s.gone:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.returned) == 0 {
		return 0, amqp.Return{}, false
	}
	for i, m := range messages {
		if r, back := s.returned[MessageID(m)]; back {
			return i, r, true
		}
	}
	return 0, amqp.Return{}, false
}

// explain returns the reason why the channel ended. If a message that was sent alone is too large, it is a PoisonError. If several were
// sent, it is unknown which of them is too large.
func (s *amqpSink) explain(messages []consumer.Message, err error) error {
	if s.closed.Load() {
		return notify.ErrClosed
	}
	if errors.As(err, new(*PoisonError)) { // it was not sent, so the channel stays open
		return err
	}
	select {
	case <-s.gone:
	case <-time.After(time.Second):
		if !s.channel.IsClosed() { // after a nack the channel stays open
			return err
		}
		<-s.gone
	}
	why := s.why.Load()
	switch {
	case why == nil:
		return err
	case why.Code == amqp.PreconditionFailed || why.Code == amqp.ContentTooLarge:
		if len(messages) == 1 {
			return &PoisonError{messages[0].ID, why}
		}
	case why.Code == amqp.NotFound: // the exchange was deleted
		return fmt.Errorf("send: %w", why)
	}
	return amqpError("send", why)
}

func (s *amqpSink) Close() error {
	s.closed.Store(true)
	_ = s.conn.CloseDeadline(time.Now().Add(time.Second)) // its error is irrelevant: unconfirmed messages are sent again
	<-s.gone
	return nil
}
