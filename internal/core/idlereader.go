package core

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// calm is how long a connection must be unused before an idleReader reads from it. A shorter time would cost more than it gains
// for statements that follow one another.
const calm = 20 * time.Millisecond

// idleReader is a session's connection. While no statement uses the connection, it reads from it. A MySQL server
// sends nothing unasked, so this read ends only with the connection: the session learns of the end at
// once, without a statement. If a statement has begun in the meantime, the read returns its answer, which the
// driver then gets, so that no statement must end the read first. The server of net/http reads ahead in the same way.
type idleReader struct {
	net.Conn               // nil if the driver dialled by other means; then no end is noticed
	gone     chan struct{} // closed when the connection has ended
	calm     *time.Timer   // calls readAhead

	mu    sync.Mutex
	users int           // the callers that use the connection, or wait to
	ahead chan struct{} // closed when the read has ended; nil if there is no read whose result the driver has not had
	data  []byte        // the result of the read
	err   error
	page  [4 << 10]byte
}

func newIdleReader(conn net.Conn) *idleReader {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAlive(true) // as the driver does with connections whose type it knows
	}
	q := &idleReader{Conn: conn, gone: make(chan struct{}), users: 1} // the set-up of the session is a user
	q.calm = time.AfterFunc(calm, q.readAhead)
	return q
}

// enter adds a caller that uses the connection, or waits to.
func (q *idleReader) enter() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.users++
}

// leave removes a caller that entered.
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
	case <-q.ahead: // the read ended while no statement ran
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
		case n == 0 && errors.Is(err, os.ErrDeadlineExceeded): // a deadline of an earlier statement, which is not the connection's end
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

// Read is called by the driver.
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

// cut closes the connection, which ends every read. It may be called twice.
func (q *idleReader) cut() {
	if q.Conn != nil {
		_ = q.Conn.Close()
	}
}

// Close is called by the driver.
func (q *idleReader) Close() error {
	q.cut()
	return nil
}

// close returns when the goroutine of readAhead has ended. The connection must have ended before. It waits at most a second for a
// Read that this does not end.
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
