package examples_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/queue"
)

// site is the site of the links.
type site struct {
	mu    sync.Mutex
	times map[string]int
	// asked gets the path of a request that is not answered: the first for /hang, and every one for /slow until release is
	// closed.
	asked   chan string
	release chan struct{}
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.times[r.URL.Path]++
	times := s.times[r.URL.Path]
	s.mu.Unlock()
	switch {
	case r.URL.Path == "/gone":
		http.Error(w, "gone", http.StatusGone)
	case r.URL.Path == "/flaky" && times < 3:
		http.Error(w, "not now", http.StatusServiceUnavailable)
	case r.URL.Path == "/hang" && times == 1:
		s.asked <- r.URL.Path
		<-r.Context().Done()
	case r.URL.Path == "/slow":
		s.asked <- r.URL.Path
		<-s.release
	}
}

// A worker is killed while it has a job, and another worker does that job. A worker that gets SIGTERM while it has a job
// finishes the job. Each link has one result.
func testWorker(t *testing.T, s *mysqltest.Server, binary string) {
	t.Helper()
	config := s.Database(t)
	links := &site{times: map[string]int{}, asked: make(chan string, 1), release: make(chan struct{})}
	server := httptest.NewServer(links)
	t.Cleanup(server.Close)
	work := func() *process { return start(t, config, binary, "-visibility", "10m", "-retry", "10ms") }
	enter := func(paths ...string) *process {
		for i := range paths {
			paths[i] = server.URL + paths[i]
		}
		p := start(t, config, binary, paths...)
		require.Zero(t, p.code())
		return p
	}
	enter("/hang", "/flaky", "/gone")
	first := work()
	require.Equal(t, "/hang", <-links.asked)
	db := openDB(t, config)
	queued, err := queue.New(db, "links", queue.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, queued.Close()) })
	counts := func(want map[string]int) {
		t.Helper()
		require.Eventually(t, func() bool {
			counts, err := queued.Counts(t.Context())
			require.NoError(t, err)
			for state, n := range counts {
				if n != want[state] {
					return false
				}
			}
			return true
		}, patience, tick)
	}
	enter("/hang").says("ids=[0]") // the link is queued already
	counts(map[string]int{"in progress": 1, "done": 1, "dead": 1})
	first.kill()
	lapse(t, db)
	second := work()

	enter("/a", "/b", "/c")
	counts(map[string]int{"done": 5, "dead": 1})
	enter("/slow")
	require.Equal(t, "/slow", <-links.asked)
	require.NoError(t, second.Process.Signal(syscall.SIGTERM))
	close(links.release)
	assert.Zero(t, second.code())
	counts(map[string]int{"done": 6, "dead": 1})

	var results []struct {
		URL              string
		Status, Attempts int
	}
	require.NoError(t, db.Pool().SelectContext(t.Context(), &results, "SELECT url, status, attempts FROM links"))
	attempts := map[string]int{}
	for _, r := range results {
		assert.Equal(t, http.StatusOK, r.Status)
		attempts[r.URL[len(server.URL):]] = r.Attempts
	}
	assert.Equal(t, map[string]int{"/hang": 2, "/flaky": 3, "/a": 1, "/b": 1, "/c": 1, "/slow": 1}, attempts)
	assert.Len(t, results, len(attempts), "a link has one result")
	assert.Equal(t, 1, links.times["/gone"], "a link that is gone is not tried again")
}
