package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Every client gets the rows that any program inserts. A client that starts at the beginning also gets the older rows.
func TestEvents(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		insert(t, db, "orders", "old 1", "old 2")
		site := start(t, db, Options{Topics: []string{"orders"}})
		live, all := site.events(t, "/topics/orders/events").joined(), site.events(t, "/topics/orders/events?after=beginning")
		second := site.events(t, "/topics/orders/events?after=1")
		insert(t, db, "orders", "new é\n\"1\"", "new 2")
		assert.Equal(t, []string{"new é\n\"1\"", "new 2"}, live.payloads(2))
		assert.Equal(t, []string{"old 1", "old 2", "new é\n\"1\"", "new 2"}, all.payloads(4))
		assert.Equal(t, []string{"old 2", "new é\n\"1\"", "new 2"}, second.payloads(3))

		again := site.events(t, "/topics/orders/events?after=beginning", "Last-Event-ID: "+live.cursor) // the header takes precedence
		insert(t, db, "orders", "new 3")
		assert.Equal(t, []string{"new 3"}, again.payloads(1))
	})
}

// A row that commits late, below ids that a client already has, reaches every client: one that stays connected, one that returns
// with its cursor, and one that returns to another server. No row comes twice.
func TestResumeLosesNoLateRow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config, "orders")
		site := start(t, db, Options{Topics: []string{"orders"}})
		stays, leaves := site.events(t, "/topics/orders/events").joined(), site.events(t, "/topics/orders/events").joined()
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('late')")
		require.NoError(t, err)
		insert(t, db, "orders", "a", "b")
		require.Equal(t, []string{"a", "b"}, stays.payloads(2))
		require.Equal(t, []string{"a", "b"}, leaves.payloads(2))
		leaves.cancel()
		assert.NotEqual(t, "3", leaves.cursor, "the cursor must not pass the open transaction")
		insert(t, db, "orders", "c")
		require.NoError(t, tx.Commit())
		insert(t, db, "orders", "d")
		want := []string{"c", "d", "late"}
		check := func(r *stream) {
			t.Helper()
			insert(t, db, "orders", "end")
			got := r.payloads(len(want) + 1)
			slices.Sort(got)
			assert.Equal(t, slices.Sorted(slices.Values(append(slices.Clone(want), "end"))), got)
			want = append(want, "end")
		}
		check(stays)
		check(site.events(t, "/topics/orders/events", "Last-Event-ID: "+leaves.cursor))
		site.end(t)
		other := start(t, openDB(t, config), Options{Topics: []string{"orders"}, Buffer: 1}) // it keeps only one message
		check(other.events(t, "/topics/orders/events", "Last-Event-ID: "+leaves.cursor))
	})
}

// Deleting rows does not move back the cursor of a client that has had them, even on a server that has never seen the rows.
func TestResumeAfterDelete(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		first := start(t, db, Options{Topics: []string{"orders"}})
		r := first.events(t, "/topics/orders/events").joined()
		insert(t, db, "orders", "1", "2", "3")
		require.Equal(t, numbered(1, 3), r.payloads(3))
		r.cancel()
		mysqltest.Exec(t, db.Pool(), "DELETE FROM orders")
		first.end(t)
		second := start(t, db, Options{Topics: []string{"orders"}, patience: long}) // so long that the test fails if the server waits
		stays := second.events(t, "/topics/orders/events", "Last-Event-ID: "+r.cursor).joined()
		leaves := second.events(t, "/topics/orders/events?after=3").joined()
		assert.Equal(t, "3", leaves.cursor)
		leaves.cancel()
		status, answer := second.ask(t, http.MethodGet, "/topics/orders/messages?after=3", "")
		assert.Equal(t, http.StatusOK, status)
		assert.Equal(t, `{"messages":[],"next":"3"}`, strings.TrimSpace(answer))
		insert(t, db, "orders", "4")
		assert.Equal(t, []string{"4"}, stays.payloads(1))
		assert.Equal(t, []string{"4"}, second.events(t, "/topics/orders/events", "Last-Event-ID: "+leaves.cursor).payloads(1))
	})
}

// A client may have rows that its new server has not read, because its old server was faster. The client's cursor keeps them,
// both at the start and in the following events.
func TestResumeAtASlowerServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		insert(t, db, "orders", numbered(1, 3)...)
		begin := func(payload string) *sqlx.Tx {
			tx, err := db.Pool().BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			_, err = tx.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES (?)", payload)
			require.NoError(t, err)
			return tx
		}
		site := start(t, db, Options{Topics: []string{"orders"}})
		site.knows(t, "orders", 3)
		fourth, fifth := begin("4"), begin("5") // the client's old server has read the second of them
		begun := site.events(t, "/topics/orders/events", "Last-Event-ID: 3+5").joined()
		begun.cancel()
		followed := site.events(t, "/topics/orders/events", "Last-Event-ID: 3+5").joined()
		insert(t, db, "orders", "6")
		require.Equal(t, []string{"6"}, followed.payloads(1))
		followed.cancel()
		stays := site.events(t, "/topics/orders/events", "Last-Event-ID: 3+5").joined()
		require.NoError(t, fifth.Commit())
		insert(t, db, "orders", "7")
		site.knows(t, "orders", 5)
		require.NoError(t, fourth.Commit())
		site.knows(t, "orders", 4)
		insert(t, db, "orders", "8")
		again := func(cursor string) *stream { return site.events(t, "/topics/orders/events", "Last-Event-ID: "+cursor) }
		assert.ElementsMatch(t, []string{"4", "6", "7", "8"}, again(begun.cursor).payloads(4))
		assert.ElementsMatch(t, []string{"4", "7", "8"}, again(followed.cursor).payloads(3))
		assert.ElementsMatch(t, []string{"4", "6", "7", "8"}, stays.payloads(4))
	})
}

// Clients get every row once although they are disconnected all the time, writers commit out of order and roll back, and the
// server keeps few messages.
func TestResumeUnderLoad(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}, Buffer: 50})
		const writers, clients = 4, 4
		rows := mysqltest.Many(30, 100, 100)
		cursors := make([]string, clients)
		for i := range cursors {
			cursors[i] = site.events(t, "/topics/orders/events").joined().cursor
		}
		var writing sync.WaitGroup
		for w := range writers {
			writing.Go(func() {
				for i := range rows {
					tx, err := db.Pool().BeginTxx(t.Context(), nil)
					if !assert.NoError(t, err) {
						return
					}
					_, err = tx.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES (?), (SLEEP(0.002))", fmt.Sprintf("%d-%d", w, i))
					if assert.NoError(t, err); i%10 == 3 {
						assert.NoError(t, tx.Rollback())
					} else {
						assert.NoError(t, tx.Commit())
					}
				}
			})
		}
		ended := make(chan struct{})
		go func() {
			writing.Wait()
			close(ended)
			_, err := db.Pool().ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('end')") // without it a client that has read everything would wait
			assert.NoError(t, err)
		}()
		var reading sync.WaitGroup
		for c := range clients {
			reading.Go(func() {
				got, full := map[uint64]int{}, false
				want := -1
				for round := 0; want < 0 || len(got) < want; round++ {
					r := site.events(t, "/topics/orders/events", "Last-Event-ID: "+cursors[c])
					for range 1 + round%7*5 {
						if want < 0 { // the client may have everything by now
							select {
							case <-ended:
								assert.NoError(t, db.Pool().GetContext(t.Context(), &want, "SELECT COUNT(*) + 1 FROM orders WHERE payload <> 'end'"))
							default:
							}
						}
						if want >= 0 && len(got) >= want {
							break
						}
						kind, data := r.next()
						if kind != "" { // the client was behind
							break
						}
						var m message
						if !assert.NoError(t, json.Unmarshal([]byte(data), &m)) {
							return
						}
						got[m.ID]++
					}
					cursors[c] = r.joined().cursor
					full = full || strings.Count(cursors[c], ",") >= maxRuns-1 // rows that do not fit in the cursor may come again
					r.cancel()
				}
				for id, times := range got {
					if times != 1 && !full {
						assert.Fail(t, "a row did not come once", "id %d came %d times", id, times)
					}
				}
			})
		}
		reading.Wait()
	})
}

// When the server ends, a stream gets an event with the reason and the time to reconnect, and running requests are answered.
func TestShutdown(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}, ReconnectAfter: 1234 * time.Millisecond})
		r := site.events(t, "/topics/orders/events").joined()
		polled := make(chan string, 1)
		var asking sync.WaitGroup
		asking.Go(func() {
			response, err := site.client.Get(site.url + "/topics/orders/messages?wait=1m")
			if !assert.NoError(t, err) {
				return
			}
			defer response.Body.Close()
			answer, err := io.ReadAll(response.Body)
			assert.NoError(t, err)
			polled <- string(answer)
		})
		defer asking.Wait()
		require.Eventually(t, func() bool { clients, _, _ := site.topics["orders"].hub.state(); return clients == 2 }, long, 10*time.Millisecond)
		site.end(t)
		kind, data := r.next()
		assert.Equal(t, "end", kind)
		assert.Contains(t, data, `"reason":"shutdown"`)
		assert.Equal(t, "1234", r.retry)
		kind, _ = r.next()
		assert.Equal(t, "eof", kind)
		assert.Contains(t, <-polled, `{"messages":[],"next":"`)
	})
}

// A stream without messages sends heartbeats.
func TestHeartbeat(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		r := start(t, db, Options{Topics: []string{"orders"}, Heartbeat: 20 * time.Millisecond}).events(t, "/topics/orders/events").joined()
		for beats := 0; beats < 3; {
			line, ok := r.line()
			require.True(t, ok)
			if line == ":" {
				beats++
			}
		}
	})
}

// These tests share one server.
func TestDatabaseInTrouble(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		t.Run("frozen", func(t *testing.T) { stateOfAFrozenServer(t, own) })
		t.Run("goes away", func(t *testing.T) { databaseGoesAway(t, own) })
	})
}

// Requests for a topic's state do not wait for a database that does not answer.
func stateOfAFrozenServer(t *testing.T, own *mysqltest.Server) {
	site := start(t, openDB(t, own.Database(t), "orders", "invoices"), Options{Topics: []string{"orders", "invoices"}, asking: 300 * time.Millisecond})
	own.Freeze()
	defer own.Thaw()
	site.client.Timeout = long
	status, answer := site.ask(t, http.MethodGet, "/topics/orders", "")
	assert.Equal(t, http.StatusServiceUnavailable, status, answer)
	status, answer = site.ask(t, http.MethodGet, "/topics", "")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, answer, `"topic":"invoices"`)
	status, _ = site.ask(t, http.MethodGet, "/metrics", "")
	assert.Equal(t, http.StatusOK, status)
}

// If the database goes away and comes back, the server reports that, streams stay open, and no row is lost.
func databaseGoesAway(t *testing.T, own *mysqltest.Server) {
	config := own.Database(t)
	db := openDB(t, config, "orders")
	site := start(t, db, Options{Topics: []string{"orders"}})
	r := site.events(t, "/topics/orders/events").joined()
	insert(t, db, "orders", "before")
	require.Equal(t, []string{"before"}, r.payloads(1))
	own.Kill()
	status, answer := site.ask(t, http.MethodPost, "/topics/orders/messages", "x")
	assert.Contains(t, []int{http.StatusServiceUnavailable, http.StatusBadGateway}, status, answer)
	ready := func(want int) {
		t.Helper()
		require.Eventually(t, func() bool { status, _ := site.ask(t, http.MethodGet, "/readyz", ""); return status == want }, long, 20*time.Millisecond)
	}
	ready(http.StatusServiceUnavailable)
	require.Eventually(t, func() bool { // the reader may notice it later than a request does
		_, answer = site.ask(t, http.MethodGet, "/topics", "")
		return strings.Contains(answer, `"reading":false`)
	}, long, 20*time.Millisecond)
	came := site.events(t, "/topics/orders/events").joined() // it waits with the older clients
	own.Restart(t)
	ready(http.StatusOK)
	require.Eventually(t, func() bool { // the reader may connect later than /readyz
		_, answer = site.ask(t, http.MethodGet, "/topics", "")
		return strings.Contains(answer, `"reading":true`)
	}, long, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		_, err := db.Pool().ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('after')")
		return err == nil
	}, long, 50*time.Millisecond)
	assert.Equal(t, []string{"after"}, r.payloads(1))
	assert.Equal(t, []string{"after"}, came.payloads(1))
}

// A poll returns existing messages at once, waits for new ones, and continues at its cursor.
func TestLongPoll(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		insert(t, db, "orders", numbered(1, 5)...)
		site := start(t, db, Options{Topics: []string{"orders"}})
		poll := func(query string) (payloads []string, next string) {
			t.Helper()
			status, answer := site.ask(t, http.MethodGet, "/topics/orders/messages?"+query, "")
			require.Equal(t, http.StatusOK, status, answer)
			var got struct {
				Messages []message
				Next     string
			}
			require.NoError(t, json.Unmarshal([]byte(answer), &got), answer)
			for _, m := range got.Messages {
				payloads = append(payloads, m.Payload)
			}
			return payloads, got.Next
		}
		got, next := poll("after=beginning&limit=2")
		assert.Equal(t, numbered(1, 2), got)
		got, next = poll("limit=2&after=" + strings.ReplaceAll(next, "+", "%2B"))
		assert.Equal(t, numbered(3, 4), got)
		got, next = poll("wait=30s&after=" + strings.ReplaceAll(next, "+", "%2B"))
		assert.Equal(t, numbered(5, 5), got)
		_, now := poll("") // from now on
		done := make(chan []string, 1)
		go func() {
			got, _ := poll("wait=1m&after=" + strings.ReplaceAll(next, "+", "%2B"))
			done <- got
		}()
		require.Eventually(t, func() bool { clients, _, _ := site.topics["orders"].hub.state(); return clients == 1 }, long, 10*time.Millisecond)
		insert(t, db, "orders", "6")
		assert.Equal(t, numbered(6, 6), <-done)
		got, _ = poll("wait=10s&after=" + strings.ReplaceAll(now, "+", "%2B"))
		assert.Equal(t, numbered(6, 6), got)
		got, next = poll("wait=1ms&after=6")
		assert.Empty(t, got)
		assert.NotEmpty(t, next)
	})
}
