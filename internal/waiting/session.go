package waiting

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/server"
)

const (
	// answer is how long a statement that does not wait may take before its connection counts as lost.
	answer = 10 * time.Second
	// connecting is how long the setup of a session may take.
	connecting = 30 * time.Second
)

// session is a connection outside any pool. One goroutine at a time uses it; cut may come from another.
type session struct {
	pool   *sql.DB
	conn   *sql.Conn
	socket net.Conn // nil for a network that is registered with the driver
	id     uint64
	server string // identifies its server, see serverOf
	caps   *server.Capabilities
	isCut  atomic.Bool
	cancel atomic.Pointer[context.CancelFunc] // cancels the running statement if there is no socket
	over   atomic.Bool                        // its goroutine sends no more statements
	begun  time.Time                          // when the last statement was sent

	prepared map[string]*sql.Stmt // by query
}

// connect opens a session in the given isolation level. settings are pairs of a variable and its value; variables that the
// server does not know are skipped.
func connect(ctx context.Context, config *mysql.Config, isolation string, settings ...string) (*session, error) {
	s := new(session)
	config = config.Clone()
	config.InterpolateParams = true
	config.MultiStatements = false // after a KILL between two statements of a packet the client would wait for an answer that never comes
	config.ReadTimeout = 0         // it would cut waits short
	config.ParseTime = false       // a carrier parses times itself, in UTC
	if dial := server.Dialer(config); dial != nil {
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			var err error
			s.socket, err = dial(ctx, network, addr)
			return s.socket, err
		}
	}
	connector, err := server.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("waiting: %w", err)
	}
	s.pool = sql.OpenDB(connector)
	s.pool.SetMaxOpenConns(1)
	ctx, cancel := context.WithTimeout(ctx, connecting)
	defer cancel()
	if err := s.setUp(ctx, isolation, settings); err != nil {
		s.close()
		return nil, fmt.Errorf("waiting: connect: %w", err)
	}
	return s, nil
}

func (s *session) setUp(ctx context.Context, isolation string, settings []string) (err error) {
	if s.conn, err = s.pool.Conn(ctx); err != nil {
		return err
	}
	if s.caps, err = server.Discover(ctx, s.conn); err != nil {
		return err
	}
	common := s.caps.Settings(append(server.ForWaits(), settings...)...)
	for _, set := range []string{common, "SET SESSION TRANSACTION ISOLATION LEVEL " + isolation} {
		if _, err := s.conn.ExecContext(ctx, set); err != nil {
			return err
		}
	}
	return s.conn.QueryRowContext(ctx, "SELECT CONNECTION_ID(), "+serverOf).Scan(&s.id, &s.server)
}

// within bounds the next statement: if the server does not answer within limit, the session is lost. The caller calls
// done after the statement.
//
// The limit is a deadline of the socket if there is one, and not a context, because with a context that can end
// database/sql and the driver each wake a goroutine at every statement.
func (s *session) within(limit time.Duration) (ctx context.Context, done func()) {
	s.begun = time.Now()
	if s.socket == nil {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		s.cancel.Store(&cancel)
		if s.isCut.Load() {
			cancel()
		}
		return ctx, cancel
	}
	_ = s.socket.SetDeadline(time.Now().Add(limit))
	if s.isCut.Load() {
		_ = s.socket.SetDeadline(time.Unix(0, 0))
	}
	return context.Background(), func() {}
}

// tookTooLong reports, after a failure, whether the last statement had no answer in time. The server may still run it.
func (s *session) tookTooLong() bool { return time.Since(s.begun) >= answer }

// ask runs a statement that returns one row.
func (s *session) ask(limit time.Duration, query string, args []any, into ...any) error {
	ctx, done := s.within(limit)
	defer done()
	return s.conn.QueryRowContext(ctx, query, args...).Scan(into...)
}

// askAs is ask for a statement that must run in the session itself, because the session's locks depend on it. The query must have
// no FROM.
func (s *session) askAs(limit time.Duration, query string, args []any, into ...any) error {
	var id uint64
	err := s.ask(limit, query+", CONNECTION_ID()", args, append(into, &id)...)
	if err == nil && id != s.id {
		return errShared
	}
	return err
}

// query runs a statement that returns rows, and calls scan with each.
func (s *session) query(limit time.Duration, query string, args []any, scan func(*sql.Rows) error) error {
	ctx, done := s.within(limit)
	defer done()
	rows, err := s.conn.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	return each(rows, scan)
}

// each calls scan with each row, and closes the rows.
func each(rows *sql.Rows, scan func(*sql.Rows) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// mostPrepared bounds the statements that a session keeps prepared. A server allows 16,382 for all its sessions.
const mostPrepared = 16

// queryPrepared is query for a statement that a message waits for: the server need not parse it every time, which saves
// 0.2 ms.
func (s *session) queryPrepared(limit time.Duration, query string, args []any, scan func(*sql.Rows) error) error {
	statement := s.prepare(limit, query)
	if statement == nil {
		return s.query(limit, query, args, scan)
	}
	ctx, done := s.within(limit)
	defer done()
	rows, err := statement.QueryContext(ctx, args...)
	if err != nil {
		if server.Number(err) != 0 { // the table may have changed
			delete(s.prepared, query)
			_ = statement.Close() //nolint:sqlclosecheck // it was kept until now
		}
		return err
	}
	return each(rows, scan)
}

// prepare returns nil if the server or the session has too many prepared statements.
func (s *session) prepare(limit time.Duration, query string) *sql.Stmt {
	if statement := s.prepared[query]; statement != nil || len(s.prepared) == mostPrepared {
		return statement
	}
	ctx, done := s.within(limit)
	defer done()
	statement, err := s.conn.PrepareContext(ctx, query) //nolint:sqlclosecheck // it is kept
	if err != nil {
		return nil
	}
	if s.prepared == nil {
		s.prepared = make(map[string]*sql.Stmt)
	}
	s.prepared[query] = statement
	return statement
}

func (s *session) exec(limit time.Duration, query string, args ...any) error {
	ctx, done := s.within(limit)
	defer done()
	_, err := s.conn.ExecContext(ctx, query, args...)
	return err
}

// isSystemUser reports whether the account has SYSTEM_USER. In MySQL only a session with SYSTEM_USER can kill a session that has it.
// The server checks the account that has connected, not the definer of the trigger.
func (s *session) isSystemUser() (is bool, err error) {
	if s.caps.MariaDB {
		return false, nil
	}
	// SHOW GRANTS includes the privileges of active roles.
	err = s.query(answer, "SHOW GRANTS", nil, func(rows *sql.Rows) error {
		var grant string
		if err := rows.Scan(&grant); err != nil {
			return err
		}
		privileges, _, global := strings.Cut(grant, " ON *.* TO ")
		is = is || global && strings.Contains(privileges, "SYSTEM_USER")
		return nil
	})
	return is, err
}

// ping keeps the connection from being idle. The server does not count it as a statement.
func (s *session) ping() error {
	ctx, done := s.within(answer)
	defer done()
	return s.conn.PingContext(ctx)
}

// serverOf identifies the server of a session among several behind a balancer.
const serverOf = "CONCAT(@@hostname, ' ', @@port, ' ', @@server_id)"

// kill ends the statement that another session of the same account runs. It names the server, because behind a balancer this session
// may be on another server, where the id belongs to another session.
func (s *session) kill(other *session) error {
	return s.exec(parting, "KILL QUERY IF("+serverOf+" = ?, ?, 0)", other.server, other.id)
}

// cut makes the running statement, and all later ones, fail.
func (s *session) cut() {
	s.isCut.Store(true)
	if s.socket != nil {
		_ = s.socket.SetDeadline(time.Unix(0, 0))
	}
	if cancel := s.cancel.Load(); cancel != nil {
		(*cancel)()
	}
}

// close ends the connection. The server frees its locks.
func (s *session) close() {
	if s.conn != nil {
		// Discard the connection, because the pool would keep it.
		_ = s.conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	_ = s.pool.Close()
}
