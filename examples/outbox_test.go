package examples_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// warehouse is the service that receives orders. It fails at times, refuses bricks, and takes one lamp without answering.
type warehouse struct {
	mu     sync.Mutex
	calls  int
	orders map[string]handed // by Idempotency-Key
	times  map[string]int
	held   chan struct{} // closed when it takes the order without answering
}

type handed struct {
	Order int64  `json:"order"`
	Item  string `json:"item"`
}

func (w *warehouse) ServeHTTP(answer http.ResponseWriter, r *http.Request) {
	var order handed
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
		http.Error(answer, err.Error(), http.StatusBadRequest)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	w.mu.Lock()
	w.calls++
	w.times[key]++
	fails := w.calls%5 == 0
	hold := !fails && len(w.orders) == 8
	if !fails && order.Item != "brick" {
		w.orders[key] = order
	}
	w.mu.Unlock()
	switch {
	case fails:
		http.Error(answer, "not now", http.StatusServiceUnavailable)
	case order.Item == "brick":
		http.Error(answer, "too heavy", http.StatusUnprocessableEntity)
	case hold:
		close(w.held)
		<-r.Context().Done() // until the client is killed
	}
}

// all returns the orders that the warehouse has.
func (w *warehouse) all() (orders map[handed]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	orders = map[handed]bool{}
	for _, order := range w.orders {
		orders[order] = true
	}
	return orders
}

// Two processes take orders, and one of them hands them over until it is killed while the warehouse has taken an order and has
// not answered. In the end the warehouse has each order under one key, and no other order. Orders that it refused are dead
// letters.
func testOutbox(t *testing.T, s *mysqltest.Server, binary string) {
	t.Helper()
	config := s.Database(t)
	db := openDB(t, config)
	hall := &warehouse{orders: map[string]handed{}, times: map[string]int{}, held: make(chan struct{})}
	server := httptest.NewServer(hall)
	t.Cleanup(server.Close)
	processes, urls := map[int]*process{}, map[int]string{}
	launch := func() {
		p, url := serve(t, config, binary, "-warehouse", server.URL)
		processes[p.Process.Pid], urls[p.Process.Pid] = p, url
	}
	launch()
	launch()
	mysqltest.Exec(t, db.Pool(), "INSERT INTO stock VALUES ('lamp', 20), ('brick', 1)")

	status := make(map[int]int)
	// place acts as a client that tries again with the same key at any server.
	place := func(i int, item string) {
		require.Eventually(t, func() bool {
			for _, url := range urls {
				if code, _, _, err := ask(t, http.MethodPut, fmt.Sprintf("%s/orders/key-%d", url, i), item); err == nil && code < 500 {
					status[i] = code
					return true
				}
			}
			return false
		}, patience, tick)
	}
	place(0, "brick")
	for i := 1; i <= 12; i++ {
		place(i, "lamp")
	}
	<-hall.held
	events, err := consumer.New(db, "order_events", consumer.Options{})
	require.NoError(t, err)
	states, err := events.Status(t.Context())
	require.NoError(t, err)
	require.Len(t, states.Groups, 1)
	member := states.Groups[0].Member
	active, err := strconv.Atoi(member[strings.LastIndex(member, ":")+1:])
	require.NoError(t, err, member)
	require.Contains(t, processes, active)
	processes[active].kill()
	for i := 13; i <= 30; i++ {
		place(i, "lamp")
	}
	delete(processes, active)
	delete(urls, active)
	launch()

	for i := range 21 {
		assert.Equal(t, http.StatusCreated, status[i], i)
		place(i, "lamp")
		assert.Equal(t, http.StatusOK, status[i], "%d: the order exists already", i)
	}
	for i := 21; i <= 30; i++ {
		assert.Equal(t, http.StatusConflict, status[i], "%d: sold out", i)
	}
	want := map[handed]bool{}
	for _, id := range mysqltest.Values[int64](t, db.Pool(), "SELECT id FROM orders WHERE item = 'lamp'") {
		want[handed{id, "lamp"}] = true
	}
	require.Len(t, want, 20)
	require.Eventually(t, func() bool { return len(hall.all()) == len(want) }, patience, tick)
	assert.Equal(t, want, hall.all())
	assert.Len(t, hall.orders, 20, "an order has one key")
	assert.Equal(t, []int{1}, mysqltest.Values[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter WHERE error LIKE '%422%'"))
	for _, p := range processes {
		p.stop()
	}
	repeated := 0
	for _, n := range hall.times {
		repeated += n - 1
	}
	assert.Greater(t, repeated, hall.calls/5, "orders that failed, or were under way when the process was killed, are handed over again")
}
