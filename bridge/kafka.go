package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
)

// kafkaSink produces idempotently, with acks from all replicas. All messages have the topic's name as their key, and so one partition,
// which keeps their order. With key=HEADER the key comes from a header, and only messages with the same key keep their order. The header
// mqnotify-message-id has the MessageID.
//
// A producer's idempotence ends with its connection: a bridge that is started again may repeat the messages in flight. The tests use
// kfake, franz-go's own cluster, and no Kafka.
type kafkaSink struct {
	client *kgo.Client
	topic  string
	key    string // the header with the key; empty means that the topic's name is the key
	once   sync.Once
	closed chan struct{}
}

func parseKafka(p *params) *Destination {
	p.noPath()
	options := []kgo.Opt{
		kgo.SeedBrokers(p.hostPort("9092")), kgo.ClientID("mqnotify"), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.AllowAutoTopicCreation(),
		// Send's context interrupts records in flight. The client's own time limit would count from a record's timestamp, which is
		// the row's creation time.
		kgo.AllowIdempotentProduceCancellation(), kgo.RecordDeliveryTimeout(0),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerBatchMaxBytes(int32(min(p.size("max", 1_000_000), 1<<30))),
	}
	if config := p.tls(p.flag("tls"), "add tls=true"); config != nil {
		options = append(options, kgo.DialTLSConfig(config))
	}
	mechanism := p.text("sasl", "plain")
	if user := p.url.User; user != nil {
		password, _ := user.Password()
		switch mechanism {
		case "plain":
			options = append(options, kgo.SASL(plain.Auth{User: user.Username(), Pass: password}.AsMechanism()))
		case "scram-sha-256":
			options = append(options, kgo.SASL(scram.Auth{User: user.Username(), Pass: password}.AsSha256Mechanism()))
		case "scram-sha-512":
			options = append(options, kgo.SASL(scram.Auth{User: user.Username(), Pass: password}.AsSha512Mechanism()))
		default:
			p.note("sasl=%q: plain, scram-sha-256 or scram-sha-512", mechanism)
		}
	}
	topic, key := p.text("topic", p.topic), p.text("key", "")
	return &Destination{InFlight: 500, Open: func(ctx context.Context) (Sink, error) {
		client, err := kgo.NewClient(options...)
		if err != nil {
			return nil, permanent(err)
		}
		if err := client.Ping(ctx); err != nil {
			client.Close()
			return nil, kafkaError("connect", err)
		}
		return &kafkaSink{client: client, topic: topic, key: key, closed: make(chan struct{})}, nil
	}}
}

// kafkaError makes a PermanentError of a refusal that no retry can change.
func kafkaError(verb string, err error) error {
	for _, refused := range []error{
		kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.InvalidTopicException,
	} {
		if errors.Is(err, refused) {
			return permanent(fmt.Errorf("%s: refused: %w", verb, err))
		}
	}
	return fmt.Errorf("%s: %w", verb, err)
}

func (s *kafkaSink) Send(ctx context.Context, messages []consumer.Message) (int, error) {
	select {
	case <-s.closed:
		return 0, notify.ErrClosed
	default:
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make([]error, len(messages))
	var waiting sync.WaitGroup
	waiting.Add(len(messages))
	for i, m := range messages {
		s.client.Produce(ctx, s.record(m), func(_ *kgo.Record, err error) {
			answers[i] = err
			waiting.Done()
		})
	}
	waiting.Wait()
	for i, err := range answers {
		switch {
		case err == nil:
		case errors.Is(err, kgo.ErrClientClosed):
			return i, notify.ErrClosed
		case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.RecordListTooLarge),
			errors.Is(err, kerr.InvalidTimestamp):
			// It is unknown which message of a batch was refused, unless it was sent alone.
			if len(messages) == 1 {
				return i, &PoisonError{messages[i].ID, err}
			}
			return i, err
		default:
			return i, kafkaError("produce", err)
		}
	}
	return len(messages), nil
}

// tombstone is the header of the message that capture writes after a delete.
const tombstone = "tombstone"

func (s *kafkaSink) record(m consumer.Message) *kgo.Record {
	r := &kgo.Record{Topic: s.topic, Key: []byte(m.Topic), Value: m.Payload, Timestamp: m.CreatedAt}
	if s.key != "" {
		r.Key = []byte(m.Headers[s.key])
	}
	if len(m.Payload) == 0 && m.Headers[tombstone] == "true" {
		r.Value = nil // a compacted topic then deletes the key
	}
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: fieldMessageID, Value: []byte(MessageID(m))})
	for _, f := range fields(m, func(string, string) bool { return true }) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: f.name, Value: []byte(f.value)})
	}
	return r
}

func (s *kafkaSink) Close() error {
	s.once.Do(func() {
		close(s.closed)
		s.client.Close()
	})
	return nil
}
