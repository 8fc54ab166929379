package examples_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/textproto"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/queue"
)

// post is a mail server. It refuses mail to later@ once with a temporary error, and mail to never@ with a permanent one. The
// first time, it does not answer at all to silent@, whose mail it does not take, and to taken@, whose mail it takes.
type post struct {
	listener net.Listener
	running  sync.WaitGroup

	mu       sync.Mutex
	received map[string]int
	put      map[string]bool      // recipients that were put off or ignored once
	conns    map[net.Conn]bool    // to close at the end
	held     map[string]chan bool // gets a value when the server does not answer
}

func newPost(t *testing.T) *post {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &post{listener: listener, received: map[string]int{}, put: map[string]bool{}, conns: map[net.Conn]bool{},
		held: map[string]chan bool{"silent@example.com": make(chan bool, 9), "taken@example.com": make(chan bool, 9)}}
	p.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.conns[conn] = true
			p.mu.Unlock()
			p.running.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		for conn := range p.conns {
			_ = conn.Close()
		}
		p.mu.Unlock()
		p.running.Wait()
	})
	return p
}

// serve speaks the part of SMTP that the test needs.
func (p *post) serve(conn net.Conn) {
	text := textproto.NewConn(conn)
	defer text.Close()
	to := ""
	_ = text.PrintfLine("220 post")
	for {
		line, err := text.ReadLine()
		if err != nil {
			return
		}
		answer := "250 ok"
		switch verb, rest, _ := strings.Cut(line, ":"); {
		case strings.HasPrefix(line, "RCPT"):
			to = strings.Trim(rest, "<>")
			answer = p.recipient(to)
		case strings.HasPrefix(line, "DATA"):
			_ = text.PrintfLine("354 go on")
			if _, err := text.ReadDotLines(); err != nil {
				return
			}
			p.mu.Lock()
			p.received[to]++
			if strings.HasPrefix(to, "taken") && p.received[to] == 1 {
				answer = ""
			}
			p.mu.Unlock()
		case verb == "QUIT":
			answer = "221 bye"
		}
		if answer == "" {
			p.held[to] <- true
			_, _ = text.ReadLine() // until the client is killed
			return
		}
		_ = text.PrintfLine("%s", answer)
	}
}

func (p *post) recipient(to string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch name, _, _ := strings.Cut(to, "@"); {
	case name == "silent" && !p.put[to]:
		p.put[to] = true
		return ""
	case name == "never":
		return "550 nobody of that name"
	case name == "later" && !p.put[to]:
		p.put[to] = true
		return "451 come back"
	}
	return "250 ok"
}

// The test kills two senders while the mail server has taken a mail and has not answered. Two other senders continue. No mail is
// sent twice, and each is sent, refused, or marked as doubtful.
func testMail(t *testing.T, s *mysqltest.Server, binary string) {
	t.Helper()
	config := s.Database(t)
	post := newPost(t)
	sender := func() *process {
		return start(t, config, binary, "-smtp", post.listener.Addr().String(), "-visibility", "10m")
	}
	require.Zero(t, start(t, config, binary, "Later <later@example.com>", "Später\r\nBcc: everybody@example.com").code())
	require.NotZero(t, start(t, config, binary, "nobody", "Hello").code())
	db := openDB(t, config)
	mails, err := queue.New(db, "mail", queue.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mails.Close()) })
	enter := func(names ...string) {
		for _, name := range names {
			payload, err := json.Marshal(map[string]string{"to": name + "@example.com", "subject": "Hello"})
			require.NoError(t, err)
			_, err = mails.Enqueue(t.Context(), queue.Entry{Payload: payload})
			require.NoError(t, err)
		}
	}
	first, second := sender(), sender()
	enter("never")
	// settled waits until n mails are done or dead, and returns the mails by recipient.
	settled := func(n int) map[string]queue.Task {
		states := map[string]queue.Task{}
		require.Eventually(t, func() bool {
			tasks, err := mails.List(t.Context(), queue.Filter{})
			require.NoError(t, err)
			open := 0
			for _, task := range tasks {
				var m struct{ To string }
				require.NoError(t, json.Unmarshal(task.Payload, &m))
				states[m.To] = task
				if task.State != "done" && task.State != "dead" {
					open++
				}
			}
			return len(tasks) == n && open == 0
		}, patience, tick)
		return states
	}
	settled(2)
	enter("silent", "taken")
	for i := range 40 {
		enter(fmt.Sprint("customer-", i))
	}
	for _, held := range post.held {
		<-held
	}
	first.kill()
	second.kill()
	lapse(t, db)
	first, second = sender(), sender()

	states := settled(44)
	first.stop()
	second.stop()

	doubtful := 0
	for to, task := range states {
		sent := post.received[to]
		assert.LessOrEqual(t, sent, 1, "%s was sent twice", to)
		switch {
		case task.State == "done":
			assert.Equal(t, 1, sent, "%s", to)
		case to == "never@example.com":
			assert.Contains(t, task.LastError, "550")
		default:
			doubtful++
			assert.Contains(t, task.LastError, "it may have been sent")
		}
	}
	assert.Equal(t, "done", states["later@example.com"].State)
	assert.Equal(t, "dead", states["taken@example.com"].State)
	assert.Equal(t, 1, post.received["taken@example.com"])
	assert.Equal(t, "dead", states["silent@example.com"].State)
	assert.Equal(t, 0, post.received["silent@example.com"])
	assert.LessOrEqual(t, doubtful, 8, "at most the mails that the killed senders held")
	for to := range post.received {
		assert.Contains(t, states, to, "a subject must not add a recipient")
	}
}
