package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// natsSource is a durable consumer of a JetStream stream. A message's id is its sequence number with the stream's creation time,
// because the numbers begin at 1 again if the stream is deleted and made again.
type natsSource struct {
	*natsConn
	once     sync.Once
	consumer jetstream.Consumer
	made     string

	mu      sync.Mutex
	got     []jetstream.Msg // received and not acknowledged
	closing bool
}

// natsAckWait is the time after which the server redelivers the messages that a killed import had in hand. If storing a message takes
// longer, the import recognizes the redelivered message by its id.
const natsAckWait = 5 * time.Second

func originNATS(p *params) *origin {
	d := newNATS(p)
	stream, subject := p.text("stream", ""), p.text("subject", "")
	durable := p.text("consumer", "mqnotify-"+p.topic)
	if stream == "" {
		p.note("stream=: name it")
	}
	if durable == "" || strings.ContainsAny(durable, ". *>/\\\t\r\n") {
		p.note("consumer=%q: a name without dots, spaces, * and >", durable)
	}
	return &origin{Key: "nats:" + stream, Open: func(ctx context.Context) (messageSource, error) {
		c, err := d.connect(ctx)
		if err != nil {
			return nil, err
		}
		s, err := consumeNATS(ctx, c, stream, jetstream.ConsumerConfig{
			Durable: durable, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy, AckWait: natsAckWait,
			MaxAckPending: 5000,
		})
		if err != nil {
			c.conn.Close()
			return nil, err
		}
		return s, nil
	}}
}

func consumeNATS(ctx context.Context, c *natsConn, name string, config jetstream.ConsumerConfig) (*natsSource, error) {
	stream, err := c.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, permanent(fmt.Errorf("find stream %q: %w", name, err))
	}
	if err != nil {
		return nil, fmt.Errorf("find stream %q: %w", name, err)
	}
	consumer, err := makeConsumer(ctx, stream, config)
	if err != nil {
		return nil, fmt.Errorf("make consumer %q: %w", config.Durable, err)
	}
	return &natsSource{natsConn: c, consumer: consumer, made: stream.CachedInfo().Created.UTC().Format("20060102T150405.000000000")}, nil
}

// makeConsumer makes the durable consumer if it does not exist. It does not change the filter of an existing one, because another import
// that uses it would miss messages.
func makeConsumer(ctx context.Context, stream jetstream.Stream, config jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	there, err := stream.Consumer(ctx, config.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return stream.CreateConsumer(ctx, config) // fails if another process has made a different one meanwhile
	}
	if err != nil {
		return nil, err
	}
	if has := there.CachedInfo().Config; has.FilterSubject != config.FilterSubject || len(has.FilterSubjects) > 0 {
		return nil, permanent(fmt.Errorf("it exists and reads %s, not %s: give consumer= another name, or delete it if no import needs it",
			subjects(append(has.FilterSubjects, has.FilterSubject)...), subjects(config.FilterSubject)))
	}
	return stream.UpdateConsumer(ctx, config)
}

// subjects formats a consumer's filters for an error.
func subjects(filters ...string) string {
	filters = slices.DeleteFunc(filters, func(s string) bool { return s == "" })
	if len(filters) == 0 {
		return "all subjects"
	}
	return fmt.Sprintf("%q", filters)
}

func (s *natsSource) Receive(ctx context.Context, most int) ([]received, error) {
	defer context.AfterFunc(ctx, func() { s.conn.Close() })() // this ends a wait at once
	s.hold(nil)
	var got []jetstream.Msg
	var err error
	for waits := false; len(got) == 0; waits = true {
		if got, err = s.fetch(ctx, most, waits); err != nil {
			return nil, err
		}
	}
	all := make([]received, len(got))
	for i, m := range got {
		at, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		headers := map[string]string{}
		for name, values := range m.Headers() {
			headers[name] = strings.Join(values, ", ")
		}
		all[i] = received{fmt.Sprintf("%s:%d", s.made, at.Sequence.Stream), producer.Message{Headers: headers, Payload: m.Data()}}
	}
	return all, nil
}

// hold stores the messages in hand, for Close, which another goroutine may call. It reports whether Close has been called.
func (s *natsSource) hold(got []jetstream.Msg) (closing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = got
	return s.closing
}

func (s *natsSource) held() []jetstream.Msg {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got
}

// fetch returns the available messages, or with wait, waits up to 10 s for one message.
func (s *natsSource) fetch(ctx context.Context, most int, wait bool) (got []jetstream.Msg, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var batch jetstream.MessageBatch
	if wait {
		short, cancel := s.withTimeout(ctx, 10*time.Second)
		defer cancel()
		batch, err = s.consumer.Fetch(1, jetstream.FetchContext(short))
	} else {
		batch, err = s.consumer.FetchNoWait(most)
	}
	if err != nil {
		return nil, err
	}
	for m := range batch.Messages() {
		got = append(got, m)
	}
	closing := s.hold(got)
	switch {
	case closing: // Close may have missed these
		giveBack(got)
		return nil, notify.ErrClosed
	case s.conn.IsClosed():
		return nil, notify.ErrClosed
	case len(got) > 0 || errors.Is(batch.Error(), context.DeadlineExceeded), errors.Is(batch.Error(), nats.ErrTimeout):
		return got, nil
	}
	return nil, batch.Error()
}

func (s *natsSource) Ack(ctx context.Context) error {
	got := s.held()
	for i, m := range got {
		if i < len(got)-1 {
			if err := m.Ack(); err != nil {
				return err
			}
			continue
		}
		if err := m.DoubleAck(ctx); err != nil { // the answer confirms the earlier acknowledgements too
			return err
		}
	}
	s.hold(nil)
	return nil
}

// Close gives unacknowledged messages back, so that the server redelivers them at once and not after natsAckWait. It waits at most a
// second for a server that does not read.
func (s *natsSource) Close() error {
	defer time.AfterFunc(time.Second, s.wire.cut).Stop()
	s.once.Do(func() {
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		giveBack(s.held())
		_ = s.conn.FlushTimeout(time.Second)
	})
	s.conn.Close()
	return nil
}

// giveBack makes the server redeliver messages at once.
func giveBack(got []jetstream.Msg) {
	for _, m := range got {
		_ = m.Nak() // if it fails, the server redelivers after natsAckWait
	}
}
