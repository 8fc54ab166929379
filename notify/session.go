package notify

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

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
)

// ErrSessionClosed is the cause of a loss that Close brought about.
var ErrSessionClosed = errors.New("the session was closed")

// SessionOptions are the settings of a pinned session.
type SessionOptions struct {
	// IdleTimeout is the session's wait_timeout, in whole seconds: how long the
	// server keeps it, and the locks it holds, when its host vanishes without
	// closing the connection. A session that holds locks is touched three times
	// as often. 0 means 30 s.
	IdleTimeout time.Duration
}

// Session is one connection of its own, outside any pool, for what lives and
// dies with a connection: advisory locks, and statements that wait. It never
// reconnects: what it held is lost with it, and Lost tells.
//
// Its methods may be called at the same time; statements run one after the other.
type Session struct {
	db   *sqlx.DB
	conn *sqlx.Conn
	id   uint64
	caps *Capabilities
	idle time.Duration

	turn  chan struct{} // one slot: who has it may use the connection
	quiet quiet         // watches the connection while nobody uses it

	mu      sync.Mutex
	locks   map[string]*Lock
	contact time.Time // when the newest statement that succeeded began
	lost    chan struct{}
	cause   error
	keeping bool
	stop    chan struct{} // closed to end the goroutine that keeps the locks
	kept    sync.WaitGroup
	closed  bool
}

func sqlOpen(connector driver.Connector) *sql.DB { return sql.OpenDB(connector) }

// Session connects and returns a pinned session, set up for waiting: autocommit,
// READ COMMITTED, UTC, no statement timeout, lock waits of 2 s at most, no entry
// in the slow log for a wait. The caller closes it.
func (db *DB) Session(ctx context.Context, options SessionOptions) (*Session, error) {
	if options.IdleTimeout == 0 {
		options.IdleTimeout = 30 * time.Second
	}
	if options.IdleTimeout < 3*time.Second {
		return nil, fmt.Errorf("notify: IdleTimeout of %v: 3s or more", options.IdleTimeout)
	}
	config := db.config.Clone()
	config.MultiStatements = true
	config.ReadTimeout = 0 // it would cut a wait short; contexts bound every read
	config.ParseTime = false
	config.Loc = time.UTC
	var socket net.Conn
	if dial := dialer(config); dial != nil {
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			socket = conn
			return conn, err
		}
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	pool := sqlx.NewDb(sqlOpen(connector), "mysql")
	pool.SetMaxOpenConns(1)
	conn, err := pool.Connx(ctx)
	if err != nil {
		_ = pool.Close()
		return nil, fmt.Errorf("notify: connect: %w", err)
	}
	s := &Session{
		db: pool, conn: conn, idle: options.IdleTimeout,
		turn: make(chan struct{}, 1), quiet: watch(socket),
		locks: make(map[string]*Lock), lost: make(chan struct{}), stop: make(chan struct{}),
		contact: time.Now(),
	}
	if err := s.setUp(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// dialer is what the driver would dial with, nil for a network registered with it.
func dialer(config *mysql.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if config.DialFunc != nil {
		return config.DialFunc
	}
	if config.Net == "tcp" || config.Net == "unix" {
		var d net.Dialer
		return d.DialContext
	}
	return nil
}

func (s *Session) setUp(ctx context.Context) error {
	caps, err := server.Discover(ctx, s.conn)
	if err != nil {
		return fmt.Errorf("notify: set up the session: %w", err)
	}
	s.caps = caps
	settings := caps.Settings(
		"autocommit", "1",
		"time_zone", "'+00:00'",
		"lock_wait_timeout", "2", // a year on MySQL: a read would queue behind an ALTER that waits
		"innodb_lock_wait_timeout", "2",
		"long_query_time", "3600", // each wait would fill the slow log
		"max_execution_time", "0",
		"max_statement_time", "0",
		"idle_transaction_timeout", "0",
		"wait_timeout", strconv.Itoa(int(s.idle.Seconds())),
	)
	for _, statement := range []string{"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", settings} {
		if _, err := s.conn.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("notify: set up the session: %w", err)
		}
	}
	if err := s.conn.QueryRowxContext(ctx, "SELECT CONNECTION_ID()").Scan(&s.id); err != nil {
		return fmt.Errorf("notify: set up the session: %w", err)
	}
	return nil
}

// ID is the server's number of the session, CONNECTION_ID().
func (s *Session) ID() uint64 { return s.id }

// Capabilities is what the session's server can do.
func (s *Session) Capabilities() *Capabilities { return s.caps }

// Lost is closed when the connection, and with it every lock, is gone.
func (s *Session) Lost() <-chan struct{} { return s.lost }

// Err is why the session was lost, nil while it lives.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Do runs f with the connection, which nobody else uses meanwhile. f must not
// keep it. A context that ends while a statement runs costs the session: the
// driver closes the connection.
func (s *Session) Do(ctx context.Context, f func(conn *sqlx.Conn) error) error {
	s.quiet.enter()
	select {
	case s.turn <- struct{}{}:
		s.quiet.leave()
	case <-s.lost:
		s.quiet.leave()
		return s.Err()
	case <-ctx.Done():
		s.quiet.leave()
		return context.Cause(ctx)
	}
	defer func() { <-s.turn }()
	return s.use(ctx, f)
}

// use runs f; the caller has the turn.
func (s *Session) use(ctx context.Context, f func(conn *sqlx.Conn) error) error {
	if err := s.Err(); err != nil {
		return err
	}
	start := time.Now()
	err := f(s.conn)
	if err == nil {
		s.mu.Lock()
		s.contact = start // later would trust the server for the time the answer took
		s.mu.Unlock()
		return nil
	}
	if !s.sound() {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		s.fail(err)
	}
	return err
}

// sound tells whether the driver still trusts the connection. The caller has the turn.
func (s *Session) sound() bool {
	valid := false
	err := s.conn.Raw(func(conn any) error {
		v, ok := conn.(driver.Validator)
		valid = !ok || v.IsValid()
		return nil
	})
	return err == nil && valid
}

// fail marks the session, and every lock it held, as lost.
func (s *Session) fail(cause error) {
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

// keep looks after the locks until the session is closed or lost: it watches the
// idle connection, which costs no statement, and touches it well inside
// wait_timeout, asking whether the locks are still the session's.
func (s *Session) keep() {
	defer s.kept.Done()
	for {
		select {
		case s.turn <- struct{}{}:
		case <-s.lost:
			return
		case <-s.stop:
			return
		}
		s.mu.Lock()
		due := s.contact.Add(s.idle / 3)
		s.mu.Unlock()
		ended := s.quiet.wait(due)
		switch {
		case ended:
			s.fail(errors.New("the server closed the connection"))
		case !time.Now().Before(due):
			s.touch()
		}
		<-s.turn
	}
}

// touch keeps the server from closing the session and checks that its locks are
// still its own. The caller has the turn.
func (s *Session) touch() {
	s.mu.Lock()
	names := make([]string, 0, len(s.locks))
	for name := range s.locks {
		names = append(names, name)
	}
	// Trust ends before the server would give the locks away.
	deadline := s.contact.Add(s.idle - s.idle/6)
	s.mu.Unlock()
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	err := s.use(ctx, func(conn *sqlx.Conn) error {
		query, args := "SELECT 1", []any{}
		held := make([]bool, len(names)+1)
		into := []any{&held[len(names)]}
		for i, name := range names {
			query += ", IS_USED_LOCK(?) <=> CONNECTION_ID()"
			args = append(args, name)
			into = append(into, &held[i])
		}
		if err := conn.QueryRowxContext(ctx, query, args...).Scan(into...); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, name := range names {
			if lock := s.locks[name]; !held[i] && lock != nil {
				delete(s.locks, name)
				lock.lose(errNotOurs)
			}
		}
		return nil
	})
	if err != nil { // a session that can't answer this is in doubt, whatever the error
		s.fail(err)
	}
}

// Close ends the connection, and with it every lock that the session holds. It
// returns when nothing of the session runs any more; it may be called twice. A
// statement under way in Do is cut off.
func (s *Session) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.fail(ErrSessionClosed)
	close(s.stop)
	s.quiet.close() // ends a watch and a read under way
	s.kept.Wait()
	s.turn <- struct{}{} // whoever was in Do has left
	// Discarded, not handed back: Conn.Close would leave it to the pool.
	_ = s.conn.Raw(func(any) error { return driver.ErrBadConn })
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("notify: close the session: %w", err)
	}
	return nil
}
