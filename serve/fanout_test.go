//go:build unix

package serve

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/metrics"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// crowd is many clients that follow one topic's events. Each counts its messages and measures their delay.
type crowd struct {
	conns []net.Conn
	all   sync.WaitGroup
	got   []atomic.Int64
	wrong atomic.Int64 // messages out of order
	late  [][]time.Duration
}

// gather connects n clients and waits until all have joined.
func gather(tb testing.TB, url string, n int) *crowd {
	tb.Helper()
	c := &crowd{got: make([]atomic.Int64, n), late: make([][]time.Duration, n)}
	var joined sync.WaitGroup
	joined.Add(n)
	for i := range n {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		require.NoError(tb, err)
		c.conns = append(c.conns, conn)
		_, err = fmt.Fprintf(conn, "GET /topics/orders/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
		require.NoError(tb, err)
		c.all.Go(func() { c.read(i, conn, joined.Done) })
	}
	joined.Wait()
	return c
}

var payloadKey = []byte(`"payload":"`)

func (c *crowd) read(i int, conn net.Conn, joined func()) {
	lines := bufio.NewReaderSize(conn, 4096)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return
		}
		switch {
		case bytes.HasPrefix(line, []byte("id: ")) && joined != nil:
			joined()
			joined = nil
		case bytes.HasPrefix(line, []byte("data: ")):
			at := bytes.Index(line, payloadKey)
			var number, sent int64
			if _, err := fmt.Sscanf(string(line[at+len(payloadKey):]), "%d@%d", &number, &sent); err != nil || number != c.got[i].Load() {
				c.wrong.Add(1)
			}
			if number%16 == 0 { // a sample
				c.late[i] = append(c.late[i], time.Since(time.Unix(0, sent)))
			}
			c.got[i].Add(1)
		}
	}
}

// have reports whether every client has n messages.
func (c *crowd) have(n int64) bool {
	for i := range c.got {
		if c.got[i].Load() < n {
			return false
		}
	}
	return true
}

func (c *crowd) leave() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.all.Wait()
}

// percentile returns a percentile of all clients' samples.
func (c *crowd) percentile(p float64) time.Duration {
	all := slices.Concat(c.late...)
	slices.Sort(all)
	return all[min(len(all)-1, int(p*float64(len(all))))]
}

// fanOut is the result of publishing at a fixed rate to a number of clients.
type fanOut struct {
	clients    int
	statements uint64 // that the database server counted
	commands   uint64 // that the HTTP server's connections sent
	median     time.Duration
	p99        time.Duration
	took       time.Duration // after the last publish
	cpu        time.Duration
}

func runFanOut(tb testing.TB, s *mysqltest.Server, clients, messages, perSecond int) fanOut {
	tb.Helper()
	config := s.Database(tb)
	writer := openDB(tb, config, "orders")
	statements := mysqltest.CountCommands(config)
	commands := metrics.CountCommands(config)
	db := openDB(tb, config)
	site := start(tb, db, Options{Topics: []string{"orders"}})
	c := gather(tb, site.url, clients)
	defer c.leave()
	conn, err := writer.Pool().Conn(tb.Context())
	require.NoError(tb, err)
	defer conn.Close()
	defer site.end(tb) // so that the next run's HTTP server runs alone
	defer c.leave()
	before, sent, cpu := statements.Statements(), commands(), cpuTime(tb)
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for i := range messages {
		<-tick.C
		_, err := conn.ExecContext(tb.Context(), "INSERT INTO orders (payload) VALUES (?)", fmt.Sprintf("%d@%d", i, time.Now().UnixNano()))
		require.NoError(tb, err)
	}
	done := time.Now()
	require.Eventually(tb, func() bool { return c.have(int64(messages)) }, long, 10*time.Millisecond)
	result := fanOut{
		clients: clients, took: time.Since(done), commands: commands() - sent, cpu: cpuTime(tb) - cpu,
		statements: statements.Statements() - before,
	}
	c.leave()
	assert.Zero(tb, c.wrong.Load(), "messages were lost, doubled or out of order")
	result.median, result.p99 = c.percentile(.5), c.percentile(.99)
	return result
}

// cpuTime returns the CPU time of this process, which runs the HTTP server and the clients.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var usage syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Every client gets every message once and in order. The number of statements does not grow with the number of clients. The long
// form has 2,000 clients.
func TestFanOut(t *testing.T) {
	many, messages := mysqltest.Many(20, 100, 2000), mysqltest.Many(20, 100, 1000)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		one, all := runFanOut(t, s, 1, messages, 100), runFanOut(t, s, many, messages, 100)
		for _, r := range []fanOut{one, all} {
			t.Logf("%d clients, %d messages: %d statements, %d commands; late p50 %v, p99 %v; the last %v after the last publish; cpu %v on %d cores",
				r.clients, messages, r.statements, r.commands, r.median, r.p99, r.took, r.cpu, runtime.NumCPU())
		}
		// The numbers differ by chance, because wakes and polls depend on timing. A statement for each client would exceed the
		// limit.
		assert.Less(t, float64(all.commands), 10*float64(one.commands)+50, "the number of statements grows with the number of clients")
	})
}

// BenchmarkFanOut publishes 100 messages a second to 2,000 clients, and for comparison to one.
func BenchmarkFanOut(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		own := s.Start(b)
		for _, clients := range []int{1, 2000} {
			b.Run(fmt.Sprintf("clients-%d", clients), func(b *testing.B) {
				for b.Loop() {
					r := runFanOut(b, own, clients, 1000, 100)
					b.ReportMetric(float64(r.commands), "commands")
					b.ReportMetric(float64(r.statements), "statements")
					b.ReportMetric(float64(r.median.Microseconds())/1000, "ms-p50")
					b.ReportMetric(float64(r.p99.Microseconds())/1000, "ms-p99")
					b.ReportMetric(r.cpu.Seconds()/10, "cores")
				}
			})
		}
	})
}
