package bridge

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/mqnotify/mqnotify/internal/brokertest"
)

// kfake is a cluster in memory, of the client's own authors: no Kafka is here. It keeps
// nothing through its end, so that it can't go away and come back.
func TestKafka(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.AllowAutoTopicCreation(), kfake.EnableSASL(), kfake.Superuser("PLAIN", brokertest.User, brokertest.Password))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	// Of wrong credentials it says nothing and hangs up: here it answers as Kafka does.
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
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
	addr := cluster.ListenAddrs()[0]
	url := func(password string) string { return "kafka://" + brokertest.User + ":" + password + "@" + addr }
	conform(t, target{
		url:     func(string) string { return url(brokertest.Password) },
		refused: url(wrongPassword),
		large:   1_100_000,
		read: func(t *testing.T, topic string) []stored {
			d, err := newParams(url(brokertest.Password), topic)
			require.NoError(t, err)
			return readKafka(t, d.url.Host, topic)
		},
	})
}

// readKafka reads a topic from its start to the end that it has now.
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

// A cluster that is not there is an error at the start.
func TestKafkaAway(t *testing.T) {
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
