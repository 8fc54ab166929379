package serve

import (
	"bufio"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// controls is a payload whose JSON is six times as long.
var controls = strings.Repeat("\x01", 1<<20)

// heap returns the size of the heap after a garbage collection.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// An answer to a poll is limited in bytes, whether its messages come from memory or from the table. The next poll continues
// where it ended.
func TestPageIsBoundedInBytes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		for range 3 {
			insert(t, db, "orders", controls)
		}
		insert(t, db, "orders", strings.Repeat("x", 3<<20), strings.Repeat("x", 3<<20), "last")
		buffers := map[string]int{"kept": 0, "table": 1}
		if racing { // each takes five seconds then
			delete(buffers, []string{"kept", "table"}[mysqltest.Random(t).IntN(2)])
		}
		for name, buffer := range buffers {
			t.Run(name, func(t *testing.T) {
				site := start(t, db, Options{Topics: []string{"orders"}, Buffer: buffer})
				var ids []string
				for after := "beginning"; len(ids) < 6; {
					status, answer := site.ask(t, http.MethodGet, "/topics/orders/messages?after="+strings.ReplaceAll(after, "+", "%2B"), "")
					require.Equal(t, http.StatusOK, status, answer)
					require.Less(t, len(answer), 7<<20)
					require.Equal(t, 1, strings.Count(answer, `"next":`))
					for n := len(ids) + 1; strings.Contains(answer, `{"id":`+strconv.Itoa(n)+","); n++ {
						ids = append(ids, strconv.Itoa(n))
					}
					_, after, _ = strings.Cut(answer, `"next":"`)
					after, _, _ = strings.Cut(after, `"`)
				}
				assert.True(t, site.options.memory.TryAcquire(site.options.memory.size), "memory is still held")
			})
		}
	})
}

// Slow clients that read large messages share a limited amount of memory, and do not keep other clients from the table.
func TestSlowClientsHoldBoundedMemory(t *testing.T) {
	t.Run("alone", func(t *testing.T) { // without the package's other tests, which use memory too
		mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
			db := openDB(t, s.Database(t), "orders")
			for range 3 {
				insert(t, db, "orders", controls)
			}
			insert(t, db, "orders", "last")
			site := start(t, db, Options{Topics: []string{"orders"}, Buffer: 1, MaxMemory: 16 << 20, WriteTimeout: 300 * time.Millisecond})
			before := heap()
			var slow []*bufio.Reader
			for range 40 {
				slow = append(slow, site.slowly(t, "/topics/orders/events?after=beginning", pace{}))
			}
			most := heap() // before the server ends the first slow client
			site.client.Timeout = long
			got := site.events(t, "/topics/orders/events?after=beginning")
			for n := 0; n < 4; {
				kind, data := got.next()
				if kind == "eof" { // on a busy machine this client may be slow, too; it then connects again
					got = site.events(t, "/topics/orders/events?after=beginning", "Last-Event-ID: "+got.cursor)
					continue
				}
				require.Empty(t, kind, data)
				n++
			}
			assert.Equal(t, "4", got.cursor)
			used := max(most, heap()) - before
			t.Logf("%d MiB for %d slow clients", used>>20, len(slow))
			assert.Less(t, used, uint64(16<<20+32<<20), "without a limit it is 76 MiB and more")
		})
	})
}
