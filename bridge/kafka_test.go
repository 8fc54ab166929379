package bridge

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/brokertest"
	ports "github.com/mqnotify/mqnotify/internal/child"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// cluster is kfake, a fake cluster by the authors of the client, because the tests have no Kafka. It keeps its data in a folder,
// so that it can be stopped in an orderly way and started again.
type cluster struct {
	*kfake.Cluster
	t      *testing.T
	folder string
	ports  []int

	mu       sync.Mutex
	produced int // the number of produce requests
	hangUp   func(produced int) bool
	frozen   chan struct{} // closed when the cluster thaws; nil if it is not frozen
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, folder: t.TempDir()}
	for range 3 {
		port, err := ports.FreePort() // fixed, because the broker listens there again after a restart
		require.NoError(t, err)
		c.ports = append(c.ports, port)
	}
	c.start()
	t.Cleanup(func() { c.Close() })
	return c
}

func (c *cluster) start() {
	c.t.Helper()
	var err error
	c.Cluster, err = kfake.NewCluster(kfake.NumBrokers(len(c.ports)), kfake.Ports(c.ports...), kfake.ListenFn(ports.Listen), kfake.AllowAutoTopicCreation(),
		kfake.EnableSASL(), kfake.DataDir(c.folder), kfake.Superuser("PLAIN", brokertest.User, brokertest.Password))
	require.NoError(c.t, err)
	// kfake hangs up on wrong credentials without an answer. Here it answers as Kafka does.
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r, ok := request.(*kmsg.SASLAuthenticateRequest)
		if !ok || !strings.HasSuffix(string(r.SASLAuthBytes), wrongPassword) {
			return nil, nil, false
		}
		response := r.ResponseKind()
		if answer, ok := response.(*kmsg.SASLAuthenticateResponse); ok {
			answer.ErrorCode = kerr.SaslAuthenticationFailed.Code
		}
		return response, nil, true
	})
	c.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, errors.New("hangs up"), c.produce(request)
	})
}

// produce checks that a request waits for all replicas and comes from an idempotent producer. It reports whether to hang up.
func (c *cluster) produce(request kmsg.Request) bool {
	r, ok := request.(*kmsg.ProduceRequest)
	if !ok {
		c.t.Errorf("%T", request)
		return true
	}
	if r.Acks != -1 {
		c.t.Errorf("acks %d", r.Acks)
	}
	for _, topic := range r.Topics {
		for _, partition := range topic.Partitions {
			var batch kmsg.RecordBatch
			if err := batch.ReadFrom(partition.Records); err != nil || batch.ProducerID < 0 || batch.FirstSequence < 0 {
				c.t.Errorf("no idempotent producer: %d, %d, %v", batch.ProducerID, batch.FirstSequence, err)
			}
		}
	}
	c.mu.Lock()
	c.produced++
	frozen, hangsUp := c.frozen, c.hangUp != nil && c.hangUp(c.produced)
	c.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
	return hangsUp
}

func (c *cluster) freeze(string) (thaw func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	frozen := make(chan struct{})
	c.frozen = frozen
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.frozen = nil
		close(frozen)
	}
}

func (c *cluster) url(password string) string {
	return "kafka://" + brokertest.User + ":" + password + "@" + c.ListenAddrs()[0]
}

func (c *cluster) target() target {
	url := c.url(brokertest.Password)
	return target{
		url:     func(string) string { return url },
		refused: c.url(wrongPassword),
		large:   1_100_000,
		stop:    func() { c.Close() }, restart: c.start, freeze: c.freeze,
		read: func(t *testing.T, topic string) []stored {
			d, err := newParams(url, topic)
			require.NoError(t, err)
			return readKafka(t, d.url.Host, topic)
		},
	}
}

func TestKafka(t *testing.T) {
	mysqltest.Once(t)
	c := newCluster(t)
	conform(t, c.target())
	require.Positive(t, c.produced)
}

// If a broker hangs up again and again during requests, it still stores each message once and in order, because the producer's
// own retries are idempotent.
func TestKafkaHangsUp(t *testing.T) {
	mysqltest.NotShort(t, "TestKafka")
	mysqltest.Once(t)
	c := newCluster(t)
	c.hangUp = func(produced int) bool { return produced%2 == 0 }
	to := c.target()
	all := messages("cut", 1, 200)
	sink := to.open(t, "cut")
	send(t, sink, all[:1], 1)
	send(t, sink, all[1:], 20)
	c.mu.Lock()
	require.Greater(t, c.produced, 15)
	c.hangUp = nil
	c.mu.Unlock()
	require.Equal(t, wanted(all), to.read(t, "cut"))
}

// readKafka reads a topic from its start to its present end.
func readKafka(t *testing.T, addr, topic string) (all []stored) {
	t.Helper()
	client, err := kgo.NewClient(append(kafkaLogin(), kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, client.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte(topic), Value: []byte(endMark)}).FirstErr())
	partitions := map[int32]bool{}
	for {
		fetches := client.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		for _, r := range fetches.Records() {
			if string(r.Value) == endMark {
				require.Len(t, partitions, 1, "one partition keeps the order")
				return all
			}
			partitions[r.Partition] = true
			s := stored{payload: string(r.Value)}
			for _, h := range r.Headers {
				switch h.Key {
				case fieldMessageID:
					s.id = string(h.Value)
				case "traceparent":
					s.trace = string(h.Value)
				}
			}
			all = append(all, s)
		}
	}
}

// An unreachable cluster is an error at the start.
func TestKafkaAway(t *testing.T) {
	mysqltest.Once(t)
	d, err := Parse("kafka://me:"+brokertest.Password+"@127.0.0.1:1", "t")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = d.Open(ctx)
	requireTransient(t, err)
}

func kafkaLogin() []kgo.Opt {
	return []kgo.Opt{kgo.SASL(plain.Auth{User: brokertest.User, Pass: brokertest.Password}.AsMechanism())}
}

// Only a message that capture marks as a tombstone has no value. Any other empty message has an empty value.
func TestKafkaTombstone(t *testing.T) {
	sink := &kafkaSink{topic: "t", key: "key"}
	r := sink.record(consumer.Message{Headers: map[string]string{"key": "7", "tombstone": "true"}, Payload: []byte{}})
	require.Nil(t, r.Value)
	require.Equal(t, "7", string(r.Key))
	require.NotNil(t, sink.record(consumer.Message{Headers: map[string]string{"key": "7"}, Payload: []byte{}}).Value)
}

// A message whose time the topic does not accept is refused when it is sent alone.
func TestKafkaRefusesATime(t *testing.T) {
	mysqltest.Once(t)
	c := newCluster(t)
	sink, all := c.target().open(t, "t"), messages("t", 1, 2)
	c.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r, ok := request.(*kmsg.ProduceRequest)
		response, is := request.ResponseKind().(*kmsg.ProduceResponse)
		if !ok || !is {
			return nil, nil, false
		}
		for _, topic := range r.Topics {
			answer := kmsg.NewProduceResponseTopic()
			answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				partition := kmsg.NewProduceResponseTopicPartition()
				partition.Partition, partition.ErrorCode = p.Partition, kerr.InvalidTimestamp.Code
				answer.Partitions = append(answer.Partitions, partition)
			}
			response.Topics = append(response.Topics, answer)
		}
		return response, nil, true
	})
	_, err := sink.Send(t.Context(), all)
	require.ErrorIs(t, err, kerr.InvalidTimestamp)
	require.NotErrorAs(t, err, new(*PoisonError))
	_, err = sink.Send(t.Context(), all[:1])
	var refused *PoisonError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, all[0].ID, refused.ID)
}
