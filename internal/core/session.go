package core

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
)

// ErrSessionClosed is the cause of a loss after Close.
var ErrSessionClosed = errors.New("the session was closed")

var errNoAnswer = errors.New("the server did not answer in time")

const (
	// answer is how long a statement that does not wait may take before its
	// connection counts as lost.
	answer = 10 * time.Second
	// connecting bounds the dial and the set-up of a session.
	connecting = 30 * time.Second
	// parting is how long Close lets a running statement continue.
	parting = 100 * time.Millisecond
)

// SessionOptions are the settings of a pinned session.
type SessionOptions struct {
	// IdleTimeout is the session's wait_timeout, in whole seconds: how long the server keeps the session and its locks when its
	// host vanishes without closing the connection. The session touches the connection after two fifths of it, and counts its
	// locks as lost after five sixths without an answer. A touch is a ping if pings reach the session. Once a minute, after
	// other statements, and behind a proxy that answers pings itself, the touch asks for the locks instead.
	// 0 means 30 s; the minimum is 3 s.
	IdleTimeout time.Duration
	// Limit bounds the time for which a caller of Ask may use the session. 0 means no limit.
	Limit time.Duration
}

// Session is a connection outside the pool, for what ends with a connection: advisory locks, and statements that wait. It never
// reconnects. When the connection ends, the session and its locks are lost, and Lost reports it at once.
//
// Its methods are safe for concurrent use; its statements run one after the other.
type Session struct {
	db   *sqlx.DB
	conn *sqlx.Conn
	id   uint64
	caps *server.Capabilities
	idle time.Duration

	limit  time.Duration // of Ask
	shared bool          // several callers use it, and none closes it

	permit chan struct{} // capacity 1: the goroutine that fills it may use the connection
	socket *idleReader   // the connection

	// The holder of the permit owns these.
	used  bool // a statement that was not a touch ran since asked, and may have released a lock
	pings int  // whether they reach the session: pingsUntried and so on

	kept    sync.WaitGroup // the goroutine of keep
	closing sync.Once
	closed  error

	mu      sync.Mutex
	locks   map[string]*Lock
	checked time.Time // when the latest statement or ping began that showed that the session holds its locks
	asked   time.Time // when the latest statement began that asked the server for the locks; a proxy may have used another session
	lost    chan struct{}
	cause   error
}

// NewSession connects and returns a session that is set up for waiting: autocommit, READ COMMITTED (REPEATABLE READ if the server
// logs statements), UTC, no statement timeout, lock waits of at most 2 s, and no entries in the slow log for waits. The caller
// closes it. ctx bounds only the connecting.
func NewSession(ctx context.Context, db *DB, options SessionOptions) (*Session, error) {
	if options.IdleTimeout == 0 {
		options.IdleTimeout = 30 * time.Second
	}
	if options.IdleTimeout < 3*time.Second {
		return nil, fmt.Errorf("notify: IdleTimeout is %v: it must be 3s or more", options.IdleTimeout)
	}
	options.IdleTimeout = options.IdleTimeout.Truncate(time.Second) // the server counts in seconds
	config := db.config.Clone()
	config.MultiStatements = true
	config.ReadTimeout = 0 // it would cut a wait short; contexts bound every read
	config.ParseTime = false
	config.Loc = time.UTC
	socket := &idleReader{users: 1}
	if dial := server.Dialer(config); dial != nil {
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			socket = newIdleReader(conn)
			return socket, nil
		}
	}
	connector, err := server.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, connecting, errNoAnswer)
	defer cancel()
	pool := sqlx.NewDb(sql.OpenDB(versionConnector{connector, db}), "mysql")
	pool.SetMaxOpenConns(1)
	conn, err := pool.Connx(ctx)
	if err != nil {
		_ = pool.Close()
		return nil, fmt.Errorf("notify: connect: %w", err)
	}
	s := &Session{
		db: pool, conn: conn, idle: options.IdleTimeout, limit: options.Limit, permit: make(chan struct{}, 1), socket: socket,
		locks: make(map[string]*Lock), lost: make(chan struct{}), checked: time.Now(),
	}
	if err := s.setUp(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	s.socket.leave()
	s.kept.Go(s.keep)
	return s, nil
}

func (s *Session) setUp(ctx context.Context) error {
	caps, err := server.Discover(ctx, s.conn)
	if err != nil {
		return fmt.Errorf("notify: set up the session: %w", err)
	}
	s.caps = caps
	settings := caps.Settings(append(server.ForWaits(),
		"lock_wait_timeout", "2", // MySQL's default is a year: a read would wait behind an ALTER that waits itself
		"innodb_lock_wait_timeout", "2",
		"idle_transaction_timeout", "0",
		"idle_readonly_transaction_timeout", "0", // the two take precedence
		"idle_write_transaction_timeout", "0",
		"wait_timeout", strconv.Itoa(int(s.idle.Seconds())),
	)...)
	isolation := "READ COMMITTED"
	if caps.StatementLog {
		isolation = "REPEATABLE READ"
	}
	for _, statement := range []string{"SET SESSION TRANSACTION ISOLATION LEVEL " + isolation, settings} {
		if _, err := s.conn.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("notify: set up the session: %w", err)
		}
	}
	if err := s.conn.QueryRowxContext(ctx, "SELECT CONNECTION_ID()").Scan(&s.id); err != nil {
		return fmt.Errorf("notify: set up the session: %w", err)
	}
	return nil
}

// ID returns CONNECTION_ID(), the server's number of the session.
func (s *Session) ID() uint64 { return s.id }

// Capabilities returns what the session's server can do.
func (s *Session) Capabilities() *server.Capabilities { return s.caps }

// Lost returns a channel that is closed when the connection, and with it every lock, is lost.
func (s *Session) Lost() <-chan struct{} { return s.lost }

// Err returns why the session was lost, or nil while it lives.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Do runs f with the connection. No other caller uses the connection meanwhile. f must neither keep the connection nor call the
// session's other methods. If ctx ends while a statement runs, the driver closes the connection and the session is lost.
//
// While the session holds locks, f must take less than two fifths of IdleTimeout. Otherwise the session counts as lost, because it
// can't ask the server for its locks meanwhile.
func (s *Session) Do(ctx context.Context, f func(conn *sqlx.Conn) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.socket.enter()
	defer s.socket.leave()
	select {
	case s.permit <- struct{}{}:
	case <-s.lost:
		return s.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.permit }()
	s.used = true
	return s.use(ctx, f)
}

// ask is Do with a limit to the time that f takes. The time until f gets the permit does not count.
func (s *Session) ask(ctx context.Context, limit time.Duration, f func(ctx context.Context, conn *sqlx.Conn) error) error {
	return s.Do(ctx, func(conn *sqlx.Conn) error {
		return s.Within(ctx, limit, func(ctx context.Context) error { return f(ctx, conn) })
	})
}

// Within runs f inside Do. All statements of f together may take at most limit. If they take longer, or if ctx ends meanwhile, the
// session is lost, and Err returns the reason. The context that f gets is for these statements alone, and does not end. With a context
// that can end, database/sql and the driver each wake a goroutine at every statement, which is a
// quarter of the cost of a short one.
func (s *Session) Within(ctx context.Context, limit time.Duration, f func(ctx context.Context) error) error {
	if s.socket.Conn == nil { // only the driver can interrupt a read of this connection
		ctx, cancel := context.WithTimeoutCause(ctx, limit, errNoAnswer)
		defer cancel()
		err := f(ctx)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	late := time.AfterFunc(limit, func() { s.fail(errNoAnswer) })
	defer late.Stop()
	work := ctx
	if ctx.Done() != nil {
		work = context.WithoutCancel(ctx)
		defer context.AfterFunc(ctx, func() { s.fail(context.Cause(ctx)) })()
	}
	err := f(work)
	switch {
	case err == nil || s.Err() == nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	default:
		return fmt.Errorf("%w: %w", s.Err(), err) // err shows whether anything was sent
	}
}

// use runs f. The caller holds the permit.
func (s *Session) use(ctx context.Context, f func(conn *sqlx.Conn) error) error {
	if err := s.Err(); err != nil {
		return err
	}
	err := f(s.conn)
	if err != nil && !server.Sound(s.conn) {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err) // err shows whether a commit may have happened
		}
		s.fail(err)
	}
	return err
}

// fail marks the session as lost and closes its connection, because a server that still has the session would keep its locks from
// other sessions.
func (s *Session) fail(cause error) {
	s.end(cause)
	s.socket.cut()
}

// end marks the session, and every lock that it held, as lost.
func (s *Session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return
	}
	s.cause = fmt.Errorf("notify: session lost: %w", cause)
	close(s.lost)
	for name, lock := range s.locks {
		delete(s.locks, name)
		lock.lose(s.cause)
	}
}

// Close ends the connection, and with it every lock that the session holds. It interrupts a statement that runs in Do. It returns
// when no goroutine of the session runs any more. It may be called twice.
func (s *Session) Close() error {
	s.closing.Do(func() {
		s.end(ErrSessionClosed)
		// The server logs nothing if it is told of the end, but an error if the connection is cut.
		cut := time.AfterFunc(parting, s.socket.cut)
		defer cut.Stop()
		s.permit <- struct{}{} // the last caller of Do has left, and no other can enter
		s.kept.Wait()
		// Discard the connection, because Conn.Close would return it to the pool.
		_ = s.conn.Raw(func(any) error { return driver.ErrBadConn })
		if err := s.db.Close(); err != nil {
			s.closed = fmt.Errorf("notify: close the session: %w", err)
		}
		s.socket.close()
	})
	return s.closed
}
