package serve

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Many concurrent requests open a bounded number of connections, and none fails.
func TestManyPublishAtOnce(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}, DatabaseRequests: 4, crowded: long})
		const many = 200
		ended := make(chan struct{})
		most := make(chan int)
		go func() {
			var seen int
			for {
				select {
				case <-ended:
					most <- seen
					return
				case <-time.After(time.Millisecond):
					seen = max(seen, db.Pool().Stats().InUse)
				}
			}
		}()
		var publishing sync.WaitGroup
		for range many {
			publishing.Go(func() {
				status, answer := site.ask(t, "POST", "/topics/orders/messages", strings.Repeat("x", 10_000))
				assert.Equal(t, http.StatusCreated, status, answer)
			})
		}
		publishing.Wait()
		close(ended)
		assert.LessOrEqual(t, <-most, 4+4, "four for requests, four for the reader and its state")
		var n int
		require.NoError(t, db.Pool().GetContext(t.Context(), &n, "SELECT COUNT(*) FROM orders"))
		assert.Equal(t, many, n)
	})
}

// A request that would have to wait too long gets Retry-After, and is not stored.
func TestBusy(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}, DatabaseRequests: 1, crowded: 10 * time.Millisecond})
		site.options.requests <- struct{}{} // one request is under way
		for path, method := range map[string]string{"messages": "POST", "dead-letters": "GET", "dead-letters/1/retry": "POST", "dead-letters/1": "DELETE"} {
			status, answer, header := site.askAll(t, method, "/topics/orders/"+path, "x")
			assert.Equal(t, http.StatusServiceUnavailable, status, answer)
			assert.Equal(t, "2", header.Get("Retry-After"))
		}
		assert.InDelta(t, 4, counted(t, site, "mqnotify_busy_total"), 0)
		<-site.options.requests
		status, answer := site.ask(t, "POST", "/topics/orders/messages", "x")
		assert.Equal(t, http.StatusCreated, status, answer)
		assert.JSONEq(t, `{"id":1}`, answer)
	})
}
