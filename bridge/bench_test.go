package bridge

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
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

// benchRows is the number of rows that each round sends.
const benchRows = 300_000

// BenchmarkNATS sends a backlog into JetStream. The bridge and the bare client take turns. The bare client publishes messages of
// the same size and with the same headers asynchronously, with as many unanswered messages as the bridge has.
//
//	go test ./bridge -run - -bench 'NATS|Redis' -benchtime 8x
func BenchmarkNATS(b *testing.B) {
	broker := brokertest.NATS(b)
	js := openJetStream(b, broker)
	js, err := jetstream.New(js.Conn(), jetstream.WithPublishAsyncMaxPending(pageRows))
	require.NoError(b, err)
	benchmark(b, func(name string) string { return broker.URL("stream=" + name + "&subject=" + name) },
		func(name string, payloads [][]byte) {
			_, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: name, Duplicates: time.Hour})
			require.NoError(b, err)
			for i, payload := range payloads {
				id := strconv.Itoa(i + 1)
				message := &nats.Msg{Subject: name, Data: payload, Header: nats.Header{
					nats.MsgIdHdr: {"orders:" + id}, fieldID: {id}, fieldTopic: {"orders"}, fieldCreatedAt: {"2026-01-31T08:09:10.123456Z"},
				}}
				// By default the client gives up if the server is 200 ms behind.
				_, err := js.PublishMsgAsync(message, jetstream.WithStallWait(time.Minute))
				require.NoError(b, err)
			}
			<-js.PublishAsyncComplete()
		}, func(name string) {
			info, err := js.Stream(b.Context(), name)
			require.NoError(b, err)
			require.Equal(b, uint64(benchRows), info.CachedInfo().State.Msgs)
			require.NoError(b, js.DeleteStream(b.Context(), name))
		})
}

// BenchmarkRedis does the same with a Redis stream. The bare client sends pipelines of 500 XADD commands with the same fields.
func BenchmarkRedis(b *testing.B) {
	broker := brokertest.Redis(b)
	client := openRedis(b, broker)
	benchmark(b, func(name string) string { return broker.URL("stream=" + name) },
		func(name string, payloads [][]byte) {
			id := uint64(0)
			for page := range slices.Chunk(payloads, 500) {
				_, err := client.Pipelined(b.Context(), func(pipe redis.Pipeliner) error {
					for _, payload := range page {
						id++
						pipe.XAdd(b.Context(), &redis.XAddArgs{Stream: name, ID: entryID(id), Values: []any{
							fieldMessageID, "orders:" + strconv.FormatUint(id, 10), fieldID, strconv.FormatUint(id, 10), fieldTopic, "orders",
							fieldCreatedAt, "2026-01-31T08:09:10.123456Z", "payload", payload,
						}})
					}
					return nil
				})
				require.NoError(b, err)
			}
		}, func(name string) {
			require.Equal(b, int64(benchRows), client.XLen(b.Context(), name).Val())
			require.NoError(b, client.Del(b.Context(), name).Err())
		})
}

// benchmark sends a topic again and again, and the bare client sends the same messages. They take turns in going first, and each
// finds an empty broker. The bridge's share of the bare client's rate is the median of the rounds' shares, because the speed of
// the machine changes between rounds.
func benchmark(b *testing.B, url func(name string) string, bare func(name string, payloads [][]byte), clean func(name string)) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		db := openTopic(b, s)
		insert(b, db, 1, benchRows)
		_, err := db.Pool().ExecContext(b.Context(), "UPDATE orders SET payload = RPAD(payload, 100, ' ')")
		require.NoError(b, err)
		var payloads [][]byte
		for n := range benchRows {
			payloads = append(payloads, fmt.Appendf(nil, "%-100d", n+1))
		}
		ours, theirs, read := &timed{}, &timed{}, &timed{}
		var share []float64
		round := 0
		for b.Loop() {
			round++
			bridge := func() {
				name := fmt.Sprint("ours", round)
				to, err := Parse(url(name), "orders")
				require.NoError(b, err)
				ours.run(func() { takeOver(b, db, to) })
				clean(name)
			}
			client := func() {
				name := fmt.Sprint("bare", round)
				theirs.run(func() { bare(name, payloads) })
				clean(name)
			}
			if round%2 == 0 {
				bridge, client = client, bridge
			}
			bridge()
			client()
			share = append(share, 100*ours.rates[round-1]/theirs.rates[round-1])
			read.run(func() { takeOver(b, db, Writer(io.Discard)) })
		}
		b.ReportMetric(median(ours.rates), "rows/s")
		b.ReportMetric(median(theirs.rates), "bare/s")
		b.ReportMetric(median(read.rates), "stdout/s")
		b.ReportMetric(median(share), "%ofbare")
		b.ReportMetric(slices.Min(share), "%least")
		if ours.processor[0] > 0 {
			b.ReportMetric(median(ours.processor), "µs/row")
			b.ReportMetric(median(theirs.processor), "bare-µs/row")
		}
	})
}

// timed holds the results of runs over benchRows rows.
type timed struct{ rates, processor []float64 }

func (t *timed) run(f func()) {
	runtime.GC() // so that this run does not pay for the garbage of the run before
	before, began := processorTime(), time.Now()
	f()
	t.rates = append(t.rates, benchRows/time.Since(began).Seconds())
	t.processor = append(t.processor, float64((processorTime()-before).Microseconds())/benchRows)
}

// processorTime returns the CPU time of this process and of the servers that it started, where /proc is available. CPU time
// depends less than the rate on the load of the machine.
func processorTime() (sum time.Duration) {
	const tick = 10 * time.Millisecond
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	self := strconv.Itoa(os.Getpid())
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ") // the end of the program's name
		columns := strings.Fields(rest)
		if columns[1] != self && filepath.Dir(file) != "/proc/"+self {
			continue
		}
		for _, spent := range columns[11:13] { // user time and system time
			n, _ := strconv.Atoi(spent)
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

// takeOver runs a bridge from the beginning to the end of the topic.
func takeOver(b *testing.B, db *notify.DB, to *Destination) {
	b.Helper()
	options := Options{Consumer: consumer.Options{Group: "g", From: "beginning", Reset: true, StopAtEnd: true}}
	bridge, err := New(db, "orders", to, options)
	require.NoError(b, err)
	require.NoError(b, bridge.Run(context.WithoutCancel(b.Context())))
}
