package bridge

import (
	"context"
	"errors"
	"fmt"
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
	window                   time.Duration // of duplicates, of a stream that is made here
	replicas                 int
	options                  []nats.Option
}

// natsSink publishes a page at once, each message with its MessageID as Nats-Msg-Id,
// by which the stream drops duplicates within its window. What the stream's end has
// is not sent again however long ago that was: the ids there are read first.
type natsSink struct {
	*natsDestination
	*natsConn
	publisher *natsPublisher
	maxSize   int64 // of a message in the stream, -1 for none
	end       jetstream.Stream
	last      map[string]string // when those at the stream's end were inserted, by MessageID
	looked    bool
	closed    atomic.Bool
}

func parseNATS(p *params) (*Destination, error) {
	d, err := newNATS(p)
	if err != nil {
		return nil, err
	}
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
	return &Destination{InFlight: pageRows, Open: d.open}, nil
}

// newNATS reads what a connection needs.
func newNATS(p *params) (*natsDestination, error) {
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
		if _, err := private.ReadFile(file); errors.Is(err, private.ErrReadable) { // another error is that of the connection
			p.note("creds=: %v", err)
		}
		d.options = append(d.options, nats.UserCredentials(file))
	}
	// A server that demands TLS gets it from a client of nats:// too.
	if config := p.tls(scheme == "tls" || p.query.Has("ca"), ""); config != nil {
		d.options = append(d.options, nats.Secure(config))
	}
	return d, p.err
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
		return nil, fmt.Errorf("listen to answers: %w", err)
	}
	return s, nil
}

// makeStream makes the stream if it is not there. One that is there stays as it is,
// and must take the subject.
func (d *natsDestination) makeStream(ctx context.Context, js jetstream.JetStream) (*jetstream.StreamInfo, error) {
	stream, err := js.Stream(ctx, d.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: d.stream, Subjects: []string{d.subject}, Duplicates: d.window, Replicas: d.replicas,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
			stream, err = js.Stream(ctx, d.stream)
		}
	}
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return nil, permanent(fmt.Errorf("the server has no JetStream, or not for this account: %w", err))
	}
	if err != nil {
		return nil, fmt.Errorf("make stream %q: %w", d.stream, err)
	}
	info := stream.CachedInfo()
	for _, subject := range info.Config.Subjects {
		if subjectMatches(subject, d.subject) {
			return info, nil
		}
	}
	return nil, permanent(fmt.Errorf("the stream %q is there and takes no subject %q, but %s: give subject= or another stream=",
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

// remembered is how many messages at the stream's end are looked at: more than the
// bridge can have sent since it stored its offset, unless its pages were made larger.
const remembered = 2 * pageRows

// portion is how many of them are asked for at a time, which has to come within seconds: over a slow
// network all of them may take longer.
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
		if left -= got; got == 0 { // purged meanwhile
			return nil
		}
	}
	return nil
}

// beforeEnd makes a reader that begins far enough before the stream's end to meet as many of the
// subject's messages as the sink remembers, and not many more: other subjects may be in between.
func (s *natsSink) beforeEnd(ctx context.Context, first, last uint64) (jetstream.Consumer, int, error) {
	from := max(first, last-min(last, remembered-1))
	few, many := last+1, uint64(0) // from there on they are too few, or more than enough
	for {
		// Not the client's ordered consumer: its Fetch heeds no context, and never stops trying over
		// a connection that is gone.
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

// fetch notes some of the reader's messages, and says how many those were.
func (s *natsSink) fetch(ctx context.Context, reader jetstream.Consumer, most int) (got int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	go func() { // the client does not end a wait whose connection is lost
		select {
		case <-s.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
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
	defer context.AfterFunc(ctx, func() { _ = s.Close() })() // which ends a write that hangs
	if !s.looked {                                           // here and not before: another member may have been writing
		if err := s.look(ctx); err != nil {
			return 0, fmt.Errorf("read the end of stream %q: %w", s.stream, err)
		}
		s.looked = true
	}
	s.publisher.begin(len(messages))
	sent, refused := s.publishAll(ctx, messages)
	s.publisher.wait(ctx) // for all at once: a wait for each costs more
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

// publishAll publishes what is not at the stream's end, up to a message that can't be.
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
			return i, poison(m, "%d bytes are more than the server or the stream takes", size)
		}
		if err := s.publisher.publish(ctx, i, s.subject, all, m.Payload); err != nil {
			return i, err
		}
	}
	return len(messages), nil
}

// fits reports whether the server and the stream take a message of its size.
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

// checkDuplicate looks at the message for whose duplicate the stream takes one.
func (s *natsSink) checkDuplicate(ctx context.Context, m consumer.Message, sequence uint64) error {
	there, err := s.end.GetMsg(ctx, sequence)
	if err != nil {
		return nil //nolint:nilerr // it is gone, or this account may not read it
	}
	return checkSame(m, there.Header.Get(fieldCreatedAt))
}

// codeTooLarge is the server's JSStreamMessageExceedsMaximumErr, which the client
// has no name for.
const codeTooLarge jetstream.ErrorCode = 10054

func (s *natsSink) explain(m consumer.Message, err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api) && api.ErrorCode == codeTooLarge:
		return poison(m, "the stream does not take it: %w", err)
	case s.closed.Load():
		return notify.ErrClosed
	}
	return err
}

func (s *natsSink) Close() error {
	s.closed.Store(true)
	s.wire.cut() // what was not confirmed counts as not sent
	s.conn.Close()
	return nil
}
