package serve

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Over HTTP/2 a deadline for writes ends the whole stream when it passes, whether or not
// anything is being written: a stream that is silent for longer than a write may take goes on.
func TestSilentStreamOverHTTP2(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		const brief = time.Second
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
		require.Eventually(t, func() bool { clients, _, _ := site.topics["orders"].hub.state(); return clients == 2 }, long, time.Millisecond)
		<-time.After(brief * 3 / 2) // the silence that is tested
		insert(t, db, "orders", "after a silence")
		assert.Equal(t, []string{"after a silence"}, r.payloads(1))
		assert.Contains(t, <-polled, "after a silence")
		r.cancel()
	})
}
