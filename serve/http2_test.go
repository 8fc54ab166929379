package serve

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A stream over HTTP/2 survives a silence that is longer than WriteTimeout. Over HTTP/2 a write deadline ends the whole stream
// when it passes, even if nothing is being written.
func TestSilentStreamOverHTTP2(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		brief := mysqltest.Size(2*time.Second, 3*time.Second, 3*time.Second) // long enough for a write on a busy machine
		site := startTLS(t, db, Options{Topics: []string{"orders"}, WriteTimeout: brief, answer: brief})
		r := site.events(t, "/topics/orders/events").joined()
		polled := make(chan string, 1)
		go func() {
			defer close(polled)
			response, err := site.client.Get(site.url + "/topics/orders/messages?wait=1m")
			if !assert.NoError(t, err) {
				return
			}
			defer response.Body.Close()
			answer, err := io.ReadAll(response.Body)
			assert.NoError(t, err)
			polled <- string(answer)
		}()
		require.Eventually(t, func() bool { clients, _, _ := site.topics["orders"].hub.state(); return clients == 2 }, long, 10*time.Millisecond)
		<-time.After(brief * 3 / 2) // the silence
		insert(t, db, "orders", "after a silence")
		assert.Equal(t, []string{"after a silence"}, r.payloads(1))
		assert.Contains(t, <-polled, "after a silence")
		r.cancel()
	})
}

// Over HTTP/2, too, a client that does not read counts as slow.
func TestSlowClientOverHTTP2(t *testing.T) {
	mysqltest.NotShort(t, "TestSlowClient")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := startTLS(t, db, Options{Topics: []string{"orders"}, WriteTimeout: 3 * time.Second})
		response, err := site.client.Get(site.url + "/topics/orders/events")
		require.NoError(t, err)
		defer response.Body.Close()
		require.Equal(t, 2, response.ProtoMajor)
		large := strings.Repeat("x", 200_000)
		for range 60 { // more than Go's client buffers
			insert(t, db, "orders", large)
		}
		require.Eventually(t, func() bool {
			return counted(t, site, `mqnotify_streams_ended_total{reason="slow",topic="orders"}`) == 1
		}, long, 10*time.Millisecond)
	})
}
