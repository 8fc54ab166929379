package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/private"
	"github.com/mqnotify/mqnotify/notify"
)

// natsDestination is a JetStream stream.
type natsDestination struct {
	servers, stream, subject string
	window                   time.Duration // the window of duplicates of a new stream
	replicas                 int
	options                  []nats.Option
}

// natsSink publishes all messages of a Send before it waits for answers, each with its MessageID as Nats-Msg-Id. The stream drops
// duplicates by it within its window of duplicates. Beyond the window the sink drops them itself: it reads the ids at the stream's end
// before its first message.
type natsSink struct {
	*natsDestination
	*natsConn
	publisher *natsPublisher
	maxSize   int64 // of a message in the stream; -1 is no limit
	end       jetstream.Stream
	last      map[string]string // the creation times of the messages at the stream's end, by MessageID
	looked    bool
	closed    atomic.Bool
}

func parseNATS(p *params) *Destination {
	d := newNATS(p)
	d.stream = p.text("stream", p.topic)
	d.subject = p.text("subject", p.topic)
	d.window = p.duration("duplicates", time.Hour)
	d.replicas = int(p.number("replicas", 1, 1))
	if d.stream == "" || strings.ContainsAny(d.stream, ". *>/\\\t\r\n") {
		p.note("stream=%q: a name without dots, spaces, * and >", d.stream)
	}
	if d.subject == "" || strings.ContainsAny(d.subject, " *>\t\r\n") || strings.HasPrefix(d.subject, ".") || strings.HasSuffix(d.subject, ".") || strings.Contains(d.subject, "..") {
		p.note("subject=%q: a name without spaces, * and >", d.subject)
	}
	return &Destination{InFlight: pageRows, Open: d.open}
}

// newNATS reads the parameters of a connection: nats://user:password@host:4222, or nats://token@host.
func newNATS(p *params) *natsDestination {
	p.noPath()
	scheme := p.url.Scheme
	d := &natsDestination{servers: scheme + "://" + p.hostPort("4222")}
	if user := p.url.User; user != nil {
		if password, has := user.Password(); has {
			d.options = append(d.options, nats.UserInfo(user.Username(), password))
		} else {
			d.options = append(d.options, nats.Token(user.Username()))
		}
	}
	if file := p.text("creds", ""); file != "" {
		if _, err := private.ReadFile(file); errors.Is(err, private.ErrReadable) { // connect reports any other error
			p.note("creds=: %v", err)
		}
		d.options = append(d.options, nats.UserCredentials(file))
	}
	// With nats:// too, the client uses TLS if the server demands it.
	if config := p.tls(scheme == "tls" || p.query.Has("ca"), ""); config != nil {
		d.options = append(d.options, nats.Secure(config))
	}
	return d
}

func (d *natsDestination) open(ctx context.Context) (Sink, error) {
	s := &natsSink{natsDestination: d}
	c, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	info, err := d.makeStream(ctx, c.js)
	if err != nil {
		c.conn.Close()
		return nil, err
	}
	s.natsConn, s.maxSize = c, int64(info.Config.MaxMsgSize)
	if s.publisher, err = newNATSPublisher(c, d.stream); err != nil {
		c.conn.Close()
		return nil, fmt.Errorf("subscribe to answers: %w", err)
	}
	return s, nil
}

// makeStream makes the stream if it does not exist. It does not change an existing stream, which must have the subject.
func (d *natsDestination) makeStream(ctx context.Context, js jetstream.JetStream) (*jetstream.StreamInfo, error) {
	stream, err := js.Stream(ctx, d.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: d.stream, Subjects: []string{d.subject}, Duplicates: d.window, Replicas: d.replicas,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process has just made it
			stream, err = js.Stream(ctx, d.stream)
		}
	}
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return nil, permanent(fmt.Errorf("JetStream is not enabled on the server, or not for this account: %w", err))
	}
	if err != nil {
		return nil, fmt.Errorf("make stream %q: %w", d.stream, err)
	}
	info := stream.CachedInfo()
	if slices.ContainsFunc(info.Config.Subjects, func(pattern string) bool { return subjectMatches(pattern, d.subject) }) {
		return info, nil
	}
	return nil, permanent(fmt.Errorf("the stream %q exists and does not have the subject %q, but %s: give another subject= or stream=",
		d.stream, d.subject, strings.Join(info.Config.Subjects, ", ")))
}

// subjectMatches reports whether a stream's subject, which may have wildcards, matches a
// subject without wildcards.
func subjectMatches(pattern, subject string) bool {
	want, have := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, part := range want {
		switch {
		case part == ">":
			return len(have) > i
		case i >= len(have) || part != "*" && part != have[i]:
			return false
		}
	}
	return len(want) == len(have)
}

// remembered is how many messages at the stream's end are read. A bridge can't have sent more since it stored its offset, unless
// Consumer.PageRows is larger than the default.
const remembered = 2 * pageRows

// portion is how many of them are requested at a time. Each request must be answered within 5 s, also over a slow network.
const portion = 1000

// look reads the ids at the stream's end.
func (s *natsSink) look(ctx context.Context) error {
	s.last = map[string]string{}
	stream, err := s.js.Stream(ctx, s.stream)
	if err != nil {
		return err
	}
	s.end = stream
	state := stream.CachedInfo().State
	if state.Msgs == 0 {
		return nil
	}
	reader, left, err := s.beforeEnd(ctx, state.FirstSeq, state.LastSeq)
	if err != nil {
		return err
	}
	for left > 0 {
		got, err := s.fetch(ctx, reader, min(left, portion))
		if err != nil {
			return err
		}
		if left -= got; got == 0 { // the stream was purged meanwhile
			return nil
		}
	}
	return nil
}

// beforeEnd makes a reader of the subject's last messages: at least remembered and at most four times as many, if the subject has them.
// It searches the sequence number to begin at, because other subjects may have messages in between.
func (s *natsSink) beforeEnd(ctx context.Context, first, last uint64) (jetstream.Consumer, int, error) {
	from := max(first, last-min(last, remembered-1))
	few, many := last+1, uint64(0) // from these numbers on there are too few messages, or too many
	for {
		// Not the client's ordered consumer, whose Fetch ignores contexts and retries forever after a lost connection.
		reader, err := s.js.CreateConsumer(ctx, s.stream, jetstream.ConsumerConfig{
			FilterSubject: s.subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
			AckPolicy: jetstream.AckNonePolicy, HeadersOnly: true, MemoryStorage: true, InactiveThreshold: 30 * time.Second,
		})
		if err != nil {
			return nil, 0, err
		}
		switch left := reader.CachedInfo().NumPending; {
		case left < remembered && from > first && from > many+1:
			few = from
			from = max(first, last-min(last, 4*(last-from+1)-1))
			if many > 0 {
				from = many + (few-many)/2
			}
		case left > 4*remembered && from+1 < few:
			many = from
			from = many + (few-many)/2
		default:
			return reader, int(left), nil
		}
	}
}

// fetch adds some of the reader's messages to s.last, and returns their number.
func (s *natsSink) fetch(ctx context.Context, reader jetstream.Consumer, most int) (got int, err error) {
	ctx, cancel := s.withTimeout(ctx, 5*time.Second)
	defer cancel()
	batch, err := reader.Fetch(most, jetstream.FetchContext(ctx))
	if err != nil {
		return 0, err
	}
	for m := range batch.Messages() {
		s.last[m.Headers().Get(nats.MsgIdHdr)] = m.Headers().Get(fieldCreatedAt)
		got++
	}
	return got, batch.Error()
}

func (s *natsSink) Send(ctx context.Context, messages []consumer.Message) (int, error) {
	if s.closed.Load() {
		return 0, notify.ErrClosed
	}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })() // this ends a write that hangs
	if !s.looked {                                           // not in Open, after which another member may still have been sending
		if err := s.look(ctx); err != nil {
			return 0, fmt.Errorf("read the end of stream %q: %w", s.stream, err)
		}
		s.looked = true
	}
	s.publisher.begin(len(messages))
	sent, refused := s.publishAll(ctx, messages)
	s.publisher.wait(ctx) // one wait for all costs less than one for each
	for i, answer := range s.publisher.answers[:sent] {
		switch {
		case answer.stored:
		case answer.duplicate > 0:
			if err := s.checkDuplicate(ctx, messages[i], answer.duplicate); err != nil {
				return i, err
			}
		case answer.err != nil:
			return i, s.explain(messages[i], answer.err)
		case ctx.Err() != nil:
			return i, context.Cause(ctx)
		default:
			return i, s.explain(messages[i], nats.ErrConnectionClosed)
		}
	}
	if refused != nil && s.closed.Load() {
		refused = notify.ErrClosed
	}
	return sent, refused
}

// publishAll publishes the messages that are not at the stream's end, up to the first that can't be published.
func (s *natsSink) publishAll(ctx context.Context, messages []consumer.Message) (int, error) {
	for i, m := range messages {
		id := MessageID(m)
		if createdAt, there := s.last[id]; there {
			if err := checkSame(m, createdAt); err != nil {
				return i, err
			}
			delete(s.last, id)
			s.publisher.answers[i].stored = true
			continue
		}
		all := fields(m, func(name, value string) bool { return token(name, value) && !hasPrefixFold(name, "nats-") })
		all = append(all, field{nats.MsgIdHdr, id})
		if size, fits := s.fits(all, m.Payload); !fits {
			return i, poison(m, "its %d bytes exceed the limit of the server or the stream", size)
		}
		if err := s.publisher.publish(ctx, i, s.subject, all, m.Payload); err != nil {
			return i, err
		}
	}
	return len(messages), nil
}

// fits reports whether the server and the stream accept a message of this size, and returns the size.
func (s *natsSink) fits(all []field, payload []byte) (size int64, fits bool) {
	most := s.conn.MaxPayload()
	if s.maxSize > 0 {
		most = min(most, s.maxSize)
	}
	size = int64(len("NATS/1.0\r\n") + len("\r\n") + len(payload))
	for _, f := range all {
		size += int64(len(f.name) + len(": ") + len(f.value) + len("\r\n"))
	}
	return size, size <= most
}

// checkDuplicate compares a message with the stored one of which the stream reports it as a duplicate.
func (s *natsSink) checkDuplicate(ctx context.Context, m consumer.Message, sequence uint64) error {
	there, err := s.end.GetMsg(ctx, sequence)
	if err != nil {
		return nil //nolint:nilerr // it was deleted, or this account may not read it
	}
	return checkSame(m, there.Header.Get(fieldCreatedAt))
}

// codeTooLarge is the server's JSStreamMessageExceedsMaximumErr, for which the client has no constant.
const codeTooLarge jetstream.ErrorCode = 10054

func (s *natsSink) explain(m consumer.Message, err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api) && api.ErrorCode == codeTooLarge:
		return poison(m, "it is too large for the stream: %w", err)
	case s.closed.Load():
		return notify.ErrClosed
	}
	return err
}

func (s *natsSink) Close() error {
	s.closed.Store(true)
	s.wire.cut() // unconfirmed messages are sent again
	s.conn.Close()
	return nil
}
