package examples_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Three web servers answer from memory. Each forgets a price that another server changes, or that any program announces. Killing
// one server does not disturb the others.
func testCache(t *testing.T, s *mysqltest.Server, binary string) {
	t.Helper()
	config := s.Database(t)
	db := openDB(t, config)
	processes, urls := make([]*process, 3), make([]string, 3)
	for i := range processes {
		processes[i], urls[i] = serve(t, config, binary)
	}
	kept := func(url, want string) bool { // and the price is right
		status, cents, header := must(t, http.MethodGet, url, "")
		return status == http.StatusOK && cents == want && header.Get("X-Cache") == "hit"
	}
	// all waits until all servers have the price in memory.
	all := func(urls []string, id, want string) {
		t.Helper()
		for _, url := range urls {
			require.Eventually(t, func() bool { return kept(url+"/prices/"+id, want) }, patience, tick)
		}
	}

	status, _, _ := must(t, http.MethodGet, urls[0]+"/prices/1", "")
	require.Equal(t, http.StatusNotFound, status)
	status, _, _ = must(t, http.MethodPut, urls[0]+"/prices/1", "a lot")
	require.Equal(t, http.StatusBadRequest, status)
	for id, cents := range map[string]string{"1": "100", "2": "200"} {
		status, _, _ = must(t, http.MethodPut, urls[0]+"/prices/"+id, cents)
		require.Equal(t, http.StatusOK, status)
		all(urls, id, cents)
	}

	status, _, _ = must(t, http.MethodPut, urls[1]+"/prices/1", "150")
	require.Equal(t, http.StatusOK, status)
	_, cents, _ := must(t, http.MethodGet, urls[1]+"/prices/1", "")
	assert.Equal(t, "150", cents, "the server that changed the price answers with it at once")
	all(urls, "1", "150")

	mysqltest.Exec(t, db.Pool(), "INSERT INTO price_changes (payload) VALUES ('1'), ('2'), ('not a number')") // the prices are read again, and kept for a minute
	for _, p := range processes {                                                                             // each process has then handled the earlier messages
		p.says("not the id of a price")
	}
	all(urls, "1", "150")
	all(urls, "2", "200")
	mysqltest.Exec(t, db.Pool(), "UPDATE prices SET cents = 1 WHERE id IN (1, 2)") // without a message
	for _, url := range urls {
		assert.True(t, kept(url+"/prices/1", "150"), "the server answers from memory")
	}
	mysqltest.Exec(t, db.Pool(), "INSERT INTO price_changes (payload) VALUES ('1')")
	all(urls, "1", "1")
	for _, url := range urls {
		assert.True(t, kept(url+"/prices/2", "200"), "the servers have forgotten only price 1")
	}

	processes[0].kill()
	status, _, _ = must(t, http.MethodPut, urls[1]+"/prices/2", "250")
	require.Equal(t, http.StatusOK, status)
	all(urls[1:], "2", "250")
	for _, p := range processes[1:] {
		p.stop()
	}
}
