package core

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// calm is for how long a connection is not used before it is read ahead: that pays for no statement that
// others follow.
const calm = 20 * time.Millisecond

// idleReader is a session's connection, which is read ahead while no statement uses it. A MySQL server
// sends nothing unasked, so what arrives then is the connection's end: the session learns of it at
// once, without a statement. If a statement has begun meanwhile, what arrives is its answer, and the
// driver gets it: no statement has to end a watch first. The server of net/http reads ahead in the same way.
type idleReader struct {
	net.Conn               // nil when the driver dialled by other means: nothing is known then
	gone     chan struct{} // closed when the end has come
	calm     *time.Timer   // begins to read ahead

	mu    sync.Mutex
	users int           // who use the connection, or wait to
	ahead chan struct{} // closed when the read ahead has ended; nil when there is none that the driver has not had
	data  []byte        // what it got
	err   error
	page  [4 << 10]byte
}

func newIdleReader(conn net.Conn) *idleReader {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAlive(true) // as the driver does for what it knows to be TCP
	}
	q := &idleReader{Conn: conn, gone: make(chan struct{}), users: 1} // until the session is set up
	q.calm = time.AfterFunc(calm, q.readAhead)
	return q
}

// enter says that the caller uses the connection, or waits to.
func (q *idleReader) enter() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.users++
}

// leave takes an enter back.
func (q *idleReader) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.users--; q.users > 0 || q.Conn == nil {
		return
	}
	if q.ahead == nil {
		q.calm.Reset(calm)
		return
	}
	select {
	case <-q.ahead: // it came while nothing was asked
		q.end()
	default:
	}
}

func (q *idleReader) end() {
	select {
	case <-q.gone:
	default:
		close(q.gone)
	}
}

func (q *idleReader) readAhead() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ahead != nil || q.users > 0 {
		return
	}
	ahead := make(chan struct{})
	q.ahead = ahead
	go func() {
		n, err := q.Conn.Read(q.page[:])
		q.mu.Lock()
		defer q.mu.Unlock()
		defer close(ahead)
		switch {
		case n == 0 && errors.Is(err, os.ErrDeadlineExceeded): // one of the connection's own, which is no end
			q.ahead = nil
			if q.users == 0 {
				q.calm.Reset(calm)
			}
			return
		case q.users == 0:
			q.end()
		}
		q.data, q.err = q.page[:n], err
	}()
}

// Read is the driver's.
func (q *idleReader) Read(p []byte) (int, error) {
	q.mu.Lock()
	ahead := q.ahead
	q.mu.Unlock()
	if ahead == nil {
		return q.Conn.Read(p)
	}
	<-ahead
	q.mu.Lock()
	if q.ahead == nil {
		q.mu.Unlock()
		return q.Conn.Read(p)
	}
	defer q.mu.Unlock()
	n := copy(p, q.data)
	if q.data = q.data[n:]; len(q.data) > 0 {
		return n, nil
	}
	q.ahead = nil
	return n, q.err
}

// cut ends every read, for good. It may be called twice.
func (q *idleReader) cut() {
	if q.Conn != nil {
		_ = q.Conn.Close()
	}
}

// Close is the driver's.
func (q *idleReader) Close() error {
	q.cut()
	return nil
}

// close returns when nothing of it runs any more, of which the connection's end takes care; a Read that this does not end is
// not waited for.
func (q *idleReader) close() {
	q.enter()
	if q.calm == nil {
		return
	}
	q.calm.Stop()
	q.mu.Lock()
	ahead := q.ahead
	q.mu.Unlock()
	if ahead == nil {
		return
	}
	late := time.NewTimer(time.Second)
	defer late.Stop()
	select {
	case <-ahead:
	case <-late.C:
	}
}
