package bridge

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// benchRows is how many rows each round takes over.
const benchRows = 300_000

// BenchmarkNATS is a backlog's way into JetStream beside the bare client's, which
// publishes messages with the same headers asynchronously, with its defaults; in turns.
//
//	go test ./bridge -run - -bench 'NATS|Redis' -benchtime 5x
func BenchmarkNATS(b *testing.B) {
	broker := brokertest.NATS(b)
	js := openJetStream(b, broker)
	// Its default gives up when the server is 200 ms behind.
	js, err := jetstream.New(js.Conn(), jetstream.WithPublishAsyncMaxPending(4000))
	require.NoError(b, err)
	benchmark(b, func(round int) string { return broker.URL(fmt.Sprintf("stream=s%d&subject=s%d", round, round)) },
		func(round int, payloads [][]byte) {
			name := fmt.Sprintf("bare%d", round)
			_, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: name, Duplicates: time.Hour})
			require.NoError(b, err)
			for i, payload := range payloads {
				id := strconv.Itoa(i + 1)
				message := &nats.Msg{Subject: name, Data: payload, Header: nats.Header{
					nats.MsgIdHdr: {"orders:" + id}, fieldID: {id}, fieldTopic: {"orders"}, fieldCreatedAt: {"2026-01-31T08:09:10.123456Z"},
				}}
				_, err := js.PublishMsgAsync(message, jetstream.WithStallWait(time.Minute))
				require.NoError(b, err)
			}
			<-js.PublishAsyncComplete()
		}, func(round int) {
			for _, name := range []string{"s", "bare"} {
				require.NoError(b, js.DeleteStream(b.Context(), fmt.Sprint(name, round)))
			}
		})
}

// BenchmarkRedis is the same into a Redis stream, beside pipelines of 500 XADD of
// the same fields.
func BenchmarkRedis(b *testing.B) {
	broker := brokertest.Redis(b)
	client := openRedis(b, broker)
	benchmark(b, func(round int) string { return broker.URL(fmt.Sprintf("stream=s%d", round)) },
		func(round int, payloads [][]byte) {
			key, id := fmt.Sprint("bare", round), uint64(0)
			for page := range slices.Chunk(payloads, 500) {
				_, err := client.Pipelined(b.Context(), func(pipe redis.Pipeliner) error {
					for _, payload := range page {
						id++
						pipe.XAdd(b.Context(), &redis.XAddArgs{Stream: key, ID: entryID(id), Values: []any{
							fieldMessageID, "orders:" + strconv.FormatUint(id, 10), fieldID, strconv.FormatUint(id, 10), fieldTopic, "orders",
							fieldCreatedAt, "2026-01-31T08:09:10.123456Z", "payload", payload,
						}})
					}
					return nil
				})
				require.NoError(b, err)
			}
		}, func(round int) {
			require.NoError(b, client.Del(b.Context(), fmt.Sprint("s", round), fmt.Sprint("bare", round)).Err())
		})
}

// benchmark takes a topic over again and again, the bare client between.
func benchmark(b *testing.B, url func(round int) string, bare func(round int, payloads [][]byte), clean func(round int)) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		db := openTopic(b, s)
		insert(b, db, 1, benchRows)
		_, err := db.Pool().ExecContext(b.Context(), "UPDATE orders SET payload = RPAD(payload, 100, ' ')")
		require.NoError(b, err)
		var payloads [][]byte
		for n := range benchRows {
			payloads = append(payloads, fmt.Appendf(nil, "%-100d", n+1))
		}
		var ours, theirs, read []float64
		rate := func(f func()) float64 {
			began := time.Now()
			f()
			return benchRows / time.Since(began).Seconds()
		}
		round := 0
		for b.Loop() {
			round++
			to, err := Parse(url(round), "orders")
			require.NoError(b, err)
			ours = append(ours, rate(func() { takeOver(b, db, to) }))
			theirs = append(theirs, rate(func() { bare(round, payloads) }))
			read = append(read, rate(func() { takeOver(b, db, Writer(io.Discard)) }))
			clean(round)
		}
		median := func(all []float64) float64 {
			slices.Sort(all)
			return all[len(all)/2]
		}
		b.ReportMetric(median(ours), "rows/s")
		b.ReportMetric(median(theirs), "bare/s")
		b.ReportMetric(median(read), "stdout/s")
		b.ReportMetric(100*median(ours)/median(theirs), "%ofbare")
	})
}

// takeOver runs a bridge from the topic's beginning to its end.
func takeOver(b *testing.B, db *notify.DB, to *Destination) {
	b.Helper()
	options := Options{Consumer: consumer.Options{Group: "g", From: consumer.Beginning(), Reset: true, StopAtEnd: true}}
	bridge, err := New(db, "orders", to, options)
	require.NoError(b, err)
	require.NoError(b, bridge.Run(context.WithoutCancel(b.Context())))
}
