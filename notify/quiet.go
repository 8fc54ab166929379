package notify

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// quiet watches a connection on which no statement is under way. A MySQL server
// says nothing unasked, so anything that arrives is the connection's end. Such a
// watch tells at once, without a statement, what a ping would tell later.
type quiet struct {
	*quietState
}

type quietState struct {
	conn net.Conn        // nil when the driver dialled by other means: only time ends a wait then
	raw  syscall.RawConn // nil likewise
	wake chan struct{}

	mu       sync.Mutex
	watching bool
	wanted   int // how many want the connection: no watch begins while there are any
}

func watch(conn net.Conn) quiet {
	q := quiet{&quietState{conn: conn, wake: make(chan struct{}, 1)}}
	if c, ok := conn.(syscall.Conn); ok && canPeek {
		if raw, err := c.SyscallConn(); err == nil {
			q.raw = raw
		}
	}
	return q
}

// enter says that the caller wants the connection, and ends a watch under way.
func (q quiet) enter() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wanted++
	if q.watching {
		q.interrupt()
	}
}

// leave takes an enter back.
func (q quiet) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wanted--
}

func (q quiet) interrupt() {
	if q.raw != nil {
		_ = q.conn.SetReadDeadline(time.Unix(1, 0))
		return
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// wait returns true when the connection has ended, false at the given time or
// when somebody wants the connection.
func (q quiet) wait(until time.Time) (ended bool) {
	q.mu.Lock()
	if q.wanted > 0 {
		q.mu.Unlock()
		return false
	}
	q.watching = true
	if q.raw != nil {
		_ = q.conn.SetReadDeadline(until)
	}
	q.mu.Unlock()

	if q.raw != nil {
		ended = !errors.Is(peek(q.raw), os.ErrDeadlineExceeded) // data, or a socket closed here
	} else {
		timer := time.NewTimer(time.Until(until))
		select {
		case <-timer.C:
		case <-q.wake:
		}
		timer.Stop()
	}

	q.mu.Lock()
	q.watching = false
	if q.raw != nil {
		_ = q.conn.SetReadDeadline(time.Time{}) // or the next statement would meet the old one
	}
	q.mu.Unlock()
	return ended
}

// close ends a watch, and every read, for good. It may be called twice.
func (q quiet) close() {
	q.enter()
	if q.conn != nil {
		_ = q.conn.Close()
	}
}
