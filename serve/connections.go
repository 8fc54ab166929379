package serve

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"time"
)

// limitListener limits the number of open connections. If there are too many, it closes the oldest one without a running request, so
// that idle clients do not exclude others. While all have requests, new connections wait in the system's queue.
//
// A connection reaches the HTTP server only after its client has sent a byte, because it needs four times the memory there. After
// patience without a byte it is closed.
type limitListener struct {
	net.Listener
	most     int
	patience time.Duration

	ready    chan *limitedConn // connections whose clients have sent a byte
	failed   chan error        // errors of the system's Accept
	ended    chan struct{}     // closed by Close
	accepted sync.WaitGroup    // the goroutines that wait for connections, and for their first bytes

	mu      sync.Mutex
	all     int
	idle    *list.List    // of *limitedConn without a running request, the oldest first
	changed chan struct{} // closed when a connection ends, becomes idle, or the listener is closed
	closed  bool
}

// sendBuffer is how many bytes the system buffers for a client that reads slowly. The system's default is megabytes: with thousands of
// streams that do not read, the processors would be busy copying.
const sendBuffer = 2 * piece

// newLimitListener starts to accept connections. The caller closes the listener.
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
	place    *list.Element // in idle; nil while a request is running
	gone     bool          // it has ended
	served   bool          // Accept has returned it
	first    []byte        // the client's first byte, until Read returns it
	leave    func()
}

// accept accepts connections within the limit, until the listener is closed.
func (l *limitListener) accept() {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			select {
			case l.failed <- err: // the caller of Accept decides whether to retry
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

// admit waits until the number of connections is below the limit. It returns nil if the listener is closed meanwhile.
func (l *limitListener) admit(conn net.Conn) *limitedConn {
	for {
		l.mu.Lock()
		oldest, changed := l.idle.Front(), l.changed
		switch {
		case l.closed:
			l.mu.Unlock()
			_ = conn.Close() // its client has not been served
			return nil
		case l.all < l.most:
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetWriteBuffer(sendBuffer) // if it fails, the system's default holds
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
			_ = oldest.Value.(*limitedConn).Close() // it has no running request
			continue
		}
		<-changed
	}
}

// awaitFirst gives the connection to Accept after its client has sent a byte.
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

// Accept returns the next connection that was admitted and whose client has sent a byte.
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

// Close closes the listener, ends a waiting Accept, and closes the connections that Accept has not returned.
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

// tell wakes admit. The caller holds mu.
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

// Close closes the connection, so that another one can be admitted.
func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

func (c *limitedConn) end() {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	c.setIdle(false)
	c.gone = true
	l.all--
	l.tell()
}

// setIdle adds the connection to idle or removes it. It adds none that has ended, because over HTTP/2 net/http may report one as idle
// after its end, and admit would close it again and again. The caller holds mu.
func (c *limitedConn) setIdle(idle bool) {
	l := c.listener
	switch {
	case idle && c.place == nil && !c.gone:
		c.place = l.idle.PushBack(c)
		l.tell()
	case !idle && c.place != nil:
		l.idle.Remove(c.place)
		c.place = nil
	}
}

// connState implements http.Server.ConnState.
func connState(conn net.Conn, state http.ConnState) {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS
		conn = secure.NetConn()
	}
	if c, ok := conn.(*limitedConn); ok && (state == http.StateActive || state == http.StateIdle) {
		c.listener.mu.Lock()
		defer c.listener.mu.Unlock()
		c.setIdle(state == http.StateIdle)
	}
}

// reserve returns how many connections are allowed beyond the limit of requests, for health checks.
func reserve(most int) int { return max(16, most/16) }

// requests limits the running requests, because over HTTP/2 a connection has many.
type requests struct {
	places    chan struct{}
	perClient int

	mu      sync.Mutex
	clients map[string]int // by address
}

func newRequests(most, perClient int) *requests {
	return &requests{places: make(chan struct{}, most), perClient: perClient, clients: make(map[string]int)}
}

// enter counts a client's request, and returns false if the client has too many. Loopback addresses have no limit, because a proxy
// connects from there.
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

// limited limits the requests that are served at a time. It always serves health checks.
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
			fail(w, http.StatusTooManyRequests, "this address has too many running requests: try again")
			return
		}
		defer q.leave(address)
		if leave, ok := s.permit(w, r, q.places, "the server has too many running requests: try again"); ok {
			defer leave()
			next.ServeHTTP(w, r)
		}
	})
}

// clientAddress returns the client's address without the port.
func clientAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
