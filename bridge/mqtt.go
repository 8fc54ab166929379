package bridge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session"
	"github.com/eclipse/paho.golang/paho/session/state"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
)

// mqttDestination is a topic of an MQTT 5 broker.
type mqttDestination struct {
	addr     string
	tls      *tls.Config // nil for none
	user     *url.Userinfo
	topic    string
	retain   bool
	clientID string // empty: the broker makes one
}

// mqttSink publishes with QoS 1, without a wait for the acknowledgement between two messages. The MessageID is the user property
// mqnotify-message-id, because MQTT itself has no message id for receivers.
type mqttSink struct {
	*mqttDestination
	*mqttConn
	session *ackSession
	largest int // bytes of a packet, 0 for no limit
}

// mqttConn is a connection to the broker.
type mqttConn struct {
	client *paho.Client
	conn   net.Conn
	once   sync.Once
	gone   chan struct{} // closed when the connection has ended
	why    error         // the reason; set before gone is closed
	closed chan struct{}
}

func parseMQTT(p *params) *Destination {
	d := newMQTT(p)
	d.topic = p.text("topic", p.topic)
	d.retain = p.flag("retain")
	if !topicName(d.topic) {
		p.note("topic=%q: a name without # and +", d.topic)
	}
	return &Destination{InFlight: 100, Open: d.open}
}

// newMQTT reads the parameters of a connection: mqtt://user:password@host:1883.
func newMQTT(p *params) *mqttDestination {
	p.noPath()
	d := &mqttDestination{addr: p.hostPort("1883"), user: p.url.User, clientID: p.text("client", "")}
	if p.url.Scheme == "mqtts" {
		d.addr = p.hostPort("8883")
	}
	d.tls = p.tls(p.url.Scheme == "mqtts", "write mqtts://")
	return d
}

func topicName(name string) bool {
	return name != "" && mqttText(name) && !strings.ContainsAny(name, "#+")
}

// mqttRefused are the reason codes of refusals that no retry can change: unsupported protocol version, bad user name or password, not
// authorized, banned, bad authentication method.
var mqttRefused = map[byte]bool{0x84: true, 0x86: true, 0x87: true, 0x8a: true, 0x8c: true}

// connect opens a connection. hello's SessionExpiryInterval is how long the session outlives it, by default not at all.
func (d *mqttDestination) connect(ctx context.Context, config paho.ClientConfig, hello *paho.Connect) (*mqttConn, *paho.Connack, error) {
	c := &mqttConn{gone: make(chan struct{}), closed: make(chan struct{})}
	dial := new(net.Dialer).DialContext
	if d.tls != nil {
		dial = (&tls.Dialer{Config: d.tls}).DialContext
	}
	var err error
	if c.conn, err = dial(ctx, "tcp", d.addr); err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	var ending sync.Once
	end := func(err error) {
		ending.Do(func() {
			c.why = err
			close(c.gone)
		})
	}
	config.Conn = packets.NewThreadSafeConn(c.conn)
	config.ClientID = d.clientID
	config.PacketTimeout = time.Hour // the caller's context limits each wait
	config.OnClientError = func(err error) { end(fmt.Errorf("the connection is lost: %w", err)) }
	config.OnServerDisconnect = func(m *paho.Disconnect) { end(&mqttError{m.ReasonCode, "the broker ended the connection"}) }
	c.client = paho.NewClient(config)
	hello.ClientID, hello.KeepAlive = d.clientID, 20
	if d.user != nil {
		hello.Username, hello.UsernameFlag = d.user.Username(), true
		if password, has := d.user.Password(); has {
			hello.Password, hello.PasswordFlag = []byte(password), true
		}
	}
	welcome, err := c.client.Connect(ctx, hello)
	if err != nil {
		_ = c.conn.Close()
		if welcome != nil {
			err = &mqttError{welcome.ReasonCode, "the broker refuses the connection"}
			if mqttRefused[welcome.ReasonCode] {
				err = permanent(err)
			}
		}
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	return c, welcome, nil
}

// mqttError is the error of a reason code.
type mqttError struct {
	code byte
	text string
}

func (e *mqttError) Error() string { return fmt.Sprintf("%s: reason code 0x%02x", e.text, e.code) }

// end ends the connection and waits for the client's goroutines. Safe for concurrent use.
func (c *mqttConn) end() {
	c.once.Do(func() {
		close(c.closed)
		_ = c.conn.SetWriteDeadline(time.Now().Add(time.Second)) // also for a write in progress
		_ = c.client.Disconnect(&paho.Disconnect{})              // the connection may have ended
		_ = c.conn.Close()
	})
	<-c.client.Done()
}

func (d *mqttDestination) open(ctx context.Context) (Sink, error) {
	acks := &ackSession{State: state.NewInMemory()}
	conn, welcome, err := d.connect(ctx, paho.ClientConfig{Session: acks}, &paho.Connect{CleanStart: true})
	if err != nil {
		return nil, errors.Join(err, acks.State.Close())
	}
	s := &mqttSink{mqttDestination: d, mqttConn: conn, session: acks}
	if welcome.Properties != nil && welcome.Properties.MaximumPacketSize != nil {
		s.largest = int(*welcome.Properties.MaximumPacketSize)
	}
	return s, nil
}

// ackSession gives Send the acknowledgement of every message, which the client's own asynchronous publish does not report.
type ackSession struct {
	*state.State
	next chan packets.ControlPacket // gets the acknowledgement of the next published packet; set by Send
}

// AddToSession is called by the client before it sends a packet.
func (s *ackSession) AddToSession(ctx context.Context, packet session.Packet, resp chan<- packets.ControlPacket) error {
	if packet.Type() == packets.PUBLISH {
		resp = s.next
	}
	return s.State.AddToSession(ctx, packet, resp)
}

func (s *mqttSink) Send(ctx context.Context, messages []consumer.Message) (int, error) {
	select {
	case <-s.closed:
		return 0, notify.ErrClosed
	default:
	}
	defer context.AfterFunc(ctx, s.end)() // this ends a write that hangs
	acks := make([]chan packets.ControlPacket, 0, len(messages))
	var failed error
	for _, m := range messages {
		p := s.publish(m)
		if name, size := longest(p); size >= 1<<16 { // the client would cut it
			failed = poison(m, "its property %q has %d bytes, and MQTT allows 65,535", name, size)
			break
		}
		if size := packetSize(p); s.largest > 0 && size > s.largest {
			failed = poison(m, "it has %d bytes, and the broker's limit for a packet is %d", size, s.largest)
			break
		}
		ack := make(chan packets.ControlPacket, 1)
		s.session.next = ack
		if _, err := s.client.PublishWithOptions(ctx, p, paho.PublishOptions{Method: paho.PublishMethod_AsyncSend}); err != nil {
			if failed = err; errors.Is(err, paho.ErrInvalidArguments) { // a setting that the broker does not have, such as retain=
				failed = permanent(err)
			}
			break
		}
		acks = append(acks, ack)
	}
	for i, ack := range acks {
		select {
		case packet := <-ack:
			if err := s.judge(messages[i], packet); err != nil {
				return i, err
			}
		case <-s.gone:
			return i, s.explain(s.why)
		case <-s.closed:
			return i, notify.ErrClosed
		case <-ctx.Done():
			return i, context.Cause(ctx)
		}
	}
	if failed != nil {
		if !errors.As(failed, new(*PoisonError)) {
			failed = s.explain(failed)
		}
	}
	return len(acks), failed
}

func (s *mqttSink) explain(err error) error {
	select {
	case <-s.closed:
		return notify.ErrClosed
	default:
		return err
	}
}

// packetTooLarge is what mosquitto answers to a message above its message_size_limit, which it does not announce. MQTT has this
// reason code for a DISCONNECT only.
const packetTooLarge = 0x95

// judge returns the error of an acknowledgement's reason code: a PoisonError if it is about the message.
func (s *mqttSink) judge(m consumer.Message, packet packets.ControlPacket) error {
	ack, ok := packet.Content.(*packets.Puback)
	if !ok { // the session has ended
		return s.explain(errors.New("the connection ended before the acknowledgement"))
	}
	if ack.ReasonCode < 0x80 {
		return nil
	}
	err := &mqttError{ack.ReasonCode, "the broker refuses the message"}
	switch ack.ReasonCode {
	case packets.PubackTopicNameInvalid, packets.PubackPayloadFormatInvalid, packetTooLarge:
		return &PoisonError{m.ID, err}
	case packets.PubackNotAuthorized:
		return permanent(err)
	}
	return err
}

func (s *mqttSink) publish(m consumer.Message) *paho.Publish {
	properties := &paho.PublishProperties{}
	properties.User.Add(fieldMessageID, MessageID(m))
	for _, f := range fields(m, mqttProperty) {
		properties.User.Add(f.name, f.value)
	}
	return &paho.Publish{Topic: s.topic, QoS: 1, Retain: s.retain, Payload: m.Payload, Properties: properties}
}

// mqttProperty reports whether a header can be a user property: two strings of at most 64 KiB.
func mqttProperty(name, value string) bool { return mqttText(name) && mqttText(value) }

// mqttText reports whether a broker accepts a string: UTF-8 without control characters and noncharacters. A broker may end the connection
// for any other.
func mqttText(text string) bool {
	return len(text) < 1<<16 && utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsControl(r) || r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef
	})
}

// longest returns the user property with the longest value, and the value's length.
func longest(p *paho.Publish) (name string, size int) {
	for _, u := range p.Properties.User {
		if len(u.Value) > size {
			name, size = u.Key, len(u.Value)
		}
	}
	return name, size
}

// packetSize returns an upper estimate of a message's bytes on the wire.
func packetSize(p *paho.Publish) int {
	size := 16 + len(p.Topic) + len(p.Payload)
	for _, u := range p.Properties.User {
		size += 5 + len(u.Key) + len(u.Value)
	}
	return size
}

func (s *mqttSink) Close() error {
	s.end()
	return s.session.State.Close()
}
