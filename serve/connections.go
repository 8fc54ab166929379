package serve

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// limitListener accepts so many connections at a time. For one more it closes the oldest that has no request under way, so
// that idle clients keep no others out; while all are busy, others wait in the system.
//
// A connection stays here until its client has sent something, or patience has passed: in the HTTP server it would take four
// times the memory.
type limitListener struct {
	net.Listener
	most     int
	patience time.Duration

	ready    chan *limitedConn // whose clients have sent something
	failed   chan error        // of the system's Accept
	ended    chan struct{}     // closed by Close
	accepted sync.WaitGroup    // the goroutines that wait for connections, and for their first bytes

	mu      sync.Mutex
	all     int
	idle    *list.List    // of *limitedConn that have no request, the oldest first
	changed chan struct{} // closed when a connection ends, becomes idle, or the listener is closed
	closed  bool
}

// sendBuffer is how many bytes the system holds for a client that reads slowly. By itself it would take megabytes, and thousands of
// streams that do not read would keep the processors busy with copying.
const sendBuffer = 2 * piece

// newLimitListener begins to accept. The caller closes the listener.
func newLimitListener(listener net.Listener, most int, patience time.Duration) *limitListener {
	l := &limitListener{
		Listener: listener, most: most, patience: patience, idle: list.New(), changed: make(chan struct{}),
		ready: make(chan *limitedConn), failed: make(chan error), ended: make(chan struct{}),
	}
	l.accepted.Go(l.accept)
	return l
}

type limitedConn struct {
	net.Conn
	listener *limitListener
	place    *list.Element // among the idle; nil while a request is under way
	served   bool          // Accept has returned it
	first    []byte        // what its client sent first, until it is read
	leave    func()
}

// accept accepts connections, each when it has a place, until the listener is closed.
func (l *limitListener) accept() {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			select {
			case l.failed <- err: // the caller decides whether Accept is worth another try
				continue
			case <-l.ended:
				return
			}
		}
		c := l.admit(conn)
		if c == nil {
			return
		}
		l.accepted.Go(c.awaitFirst)
	}
}

// admit waits until a connection has a place. It returns nil if the listener is closed meanwhile.
func (l *limitListener) admit(conn net.Conn) *limitedConn {
	for {
		l.mu.Lock()
		oldest, changed := l.idle.Front(), l.changed
		switch {
		case l.closed:
			l.mu.Unlock()
			_ = conn.Close() // it was never served
			return nil
		case l.all < l.most:
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetWriteBuffer(sendBuffer) // without it the system's own bound holds
			}
			c := &limitedConn{Conn: conn, listener: l}
			c.leave = sync.OnceFunc(c.end)
			c.place = l.idle.PushBack(c)
			l.all++
			l.mu.Unlock()
			return c
		}
		l.mu.Unlock()
		if oldest != nil {
			_ = oldest.Value.(*limitedConn).Close() // its client had not asked for anything
			continue
		}
		<-changed
	}
}

// awaitFirst hands the connection to Accept when its client has sent something.
func (c *limitedConn) awaitFirst() {
	l := c.listener
	_ = c.SetReadDeadline(time.Now().Add(l.patience))
	first := make([]byte, 1)
	if n, _ := c.Conn.Read(first); n == 0 {
		_ = c.Close()
		return
	}
	c.first = first
	select {
	case l.ready <- c:
	case <-l.ended:
		_ = c.Close()
	}
}

// Accept waits for a connection that has its place and whose client has sent something.
func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		l.mu.Lock()
		c.served = true
		l.mu.Unlock()
		return c, nil
	case err := <-l.failed:
		return nil, err
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// Close also ends an Accept, and closes the connections that no Accept has returned.
func (l *limitListener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.tell()
	close(l.ended)
	var unserved []*limitedConn
	for e := l.idle.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*limitedConn); !c.served {
			unserved = append(unserved, c)
		}
	}
	l.mu.Unlock()
	err := l.Listener.Close()
	for _, c := range unserved {
		_ = c.Close()
	}
	l.accepted.Wait()
	return err
}

// tell wakes admit. The caller has the lock.
func (l *limitListener) tell() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (c *limitedConn) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// Close gives the connection's place to another.
func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

func (c *limitedConn) end() {
	c.setIdle(false)
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.all--
	c.listener.tell()
}

func (c *limitedConn) setIdle(idle bool) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case idle && c.place == nil:
		c.place = l.idle.PushBack(c)
		l.tell()
	case !idle && c.place != nil:
		l.idle.Remove(c.place)
		c.place = nil
	}
}

// connState is for http.Server.ConnState.
func connState(conn net.Conn, state http.ConnState) {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS
		conn = secure.NetConn()
	}
	if c, ok := conn.(*limitedConn); ok && (state == http.StateActive || state == http.StateIdle) {
		c.setIdle(state == http.StateIdle)
	}
}

// reserve is how many connections there may be beyond those whose requests are served: enough for health checks.
func reserve(most int) int { return max(16, most/16) }

// requests are those under way: over HTTP/2 a connection has many.
type requests struct {
	places    chan struct{}
	perClient int

	mu      sync.Mutex
	clients map[string]int // by address
}

func newRequests(most, perClient int) *requests {
	return &requests{places: make(chan struct{}, most), perClient: perClient, clients: make(map[string]int)}
}

// enter counts a client's request in, and reports false when it has too many. This machine's own addresses, which are
// those of a proxy, have no limit.
func (q *requests) enter(address string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ip := net.ParseIP(address); q.clients[address] >= q.perClient && (ip == nil || !ip.IsLoopback()) {
		return false
	}
	q.clients[address]++
	return true
}

func (q *requests) leave(address string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.clients[address]--; q.clients[address] == 0 {
		delete(q.clients, address)
	}
}

// limited serves so many requests at a time. Health checks are always served.
func (s *Server) limited(next http.Handler) http.Handler {
	q := s.options.underWay
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
			next.ServeHTTP(w, r)
			return
		}
		address := clientAddress(r)
		if !q.enter(address) {
			s.metrics.busy.Inc()
			w.Header().Set("Retry-After", "2")
			fail(w, http.StatusTooManyRequests, "this address has too many requests under way: try again")
			return
		}
		defer q.leave(address)
		ctx, cancel := context.WithTimeout(r.Context(), s.options.crowded)
		defer cancel()
		select {
		case q.places <- struct{}{}:
			defer func() { <-q.places }()
			next.ServeHTTP(w, r)
		case <-ctx.Done():
			s.busy(w, "too many requests are under way: try again")
		}
	})
}

// clientAddress is the address that a request comes from, without the port.
func clientAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
