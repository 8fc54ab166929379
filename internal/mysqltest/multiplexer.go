package mysqltest

import (
	"bufio"
	"context"
	"io"
	"net"
	"regexp"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// Multiplexer is a proxy that shares a few sessions of the server among all its clients, and runs the statements of a client in
// different sessions. It does not track the state of sessions: locks, variables and transactions stay in the session whose
// statement made them, even after the client has disconnected. Only the default database is always the client's.
//
// It accepts every login; its sessions use the harness's own account. It does not support prepared statements, TLS, compression
// or LOAD DATA LOCAL. The affected rows that it reports are the changed rows.
type Multiplexer struct {
	tb       testing.TB
	listener net.Listener
	greeting []byte // of the server
	running  sync.WaitGroup

	tokens chan struct{} // one for each idle session
	mu     sync.Mutex
	idle   []*sharedSession // in the order in which they became idle
	sticky bool
	pongs  bool
}

// Multiplexer starts a multiplexer with n sessions, which ends with the test. A statement waits while all of them are busy. The
// test must call [Server.Database] first: then the multiplexer's sessions end before the database is checked and dropped.
// Multiplexer skips the test if the server can be reached only over a Unix socket or TLS.
func (s *Server) Multiplexer(tb testing.TB, n int) *Multiplexer {
	tb.Helper()
	given := s.config()
	if given.Net != "tcp" || given.TLSConfig != "" || given.TLS != nil {
		tb.Skipf("a multiplexer needs TCP without TLS; %s says otherwise", envDSN)
	}
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd = given.Net, given.Addr, given.User, given.Passwd
	cfg.MultiStatements, cfg.Logger = true, given.Logger

	ctx, stop := context.WithCancel(context.Background())
	m := &Multiplexer{tb: tb, tokens: make(chan struct{}, n)}
	tb.Cleanup(func() {
		stop()
		m.running.Wait()
		for _, s := range m.idle {
			s.close()
		}
	})
	for range n {
		s := &sharedSession{server: cfg}
		if err := s.connect(ctx); err != nil {
			tb.Fatalf("mysqltest: start a multiplexer: %v", err)
		}
		m.greeting = s.greeting
		m.put(s)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", loopback(0))
	if err != nil {
		tb.Fatalf("mysqltest: start a multiplexer: %v", err)
	}
	m.listener = listener
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	m.running.Go(func() { m.accept(ctx) })
	return m
}

// Addr returns the host and port to connect to.
func (m *Multiplexer) Addr() string { return m.listener.Addr().String() }

// Config returns a copy of cfg with the multiplexer's address.
func (m *Multiplexer) Config(cfg *mysql.Config) *mysql.Config {
	through := cfg.Clone()
	through.Net, through.Addr = "tcp", m.Addr()
	through.InterpolateParams = true
	return through
}

// OnlyWhenBusy makes the multiplexer use the session that became idle last, and another one only while that one is busy. A
// client that is alone then always gets the same session.
func (m *Multiplexer) OnlyWhenBusy() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sticky = true
}

// AnswersPings makes the multiplexer answer the pings of its clients itself, without a session.
func (m *Multiplexer) AnswersPings() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pongs = true
}

func (m *Multiplexer) answersPings() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pongs
}

// take waits for an idle session.
func (m *Multiplexer) take(ctx context.Context) (*sharedSession, error) {
	select {
	case <-m.tokens:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := 0
	if m.sticky {
		at = len(m.idle) - 1
	}
	s := m.idle[at]
	m.idle = append(m.idle[:at], m.idle[at+1:]...)
	return s, nil
}

func (m *Multiplexer) put(s *sharedSession) {
	m.mu.Lock()
	m.idle = append(m.idle, s)
	m.mu.Unlock()
	m.tokens <- struct{}{}
}

func (m *Multiplexer) accept(ctx context.Context) {
	for {
		conn, err := m.listener.Accept()
		if err != nil {
			if ctx.Err() == nil {
				m.tb.Errorf("mysqltest: accept a multiplexer's client: %v", err)
			}
			return
		}
		m.running.Go(func() { m.serve(ctx, conn) })
	}
}

// serve answers a client. It returns when the client disconnects, or when the connection of a session breaks during a
// statement. In the latter case the statement's outcome is unknown, and the client's connection is closed.
func (m *Multiplexer) serve(ctx context.Context, conn net.Conn) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // ends the read in the goroutine below
	defer func() { _ = conn.Close() }()
	from := bufio.NewReader(conn)
	to := bufio.NewWriter(conn)
	database, err := m.logIn(conn, from)
	if err != nil {
		return
	}
	commands := make(chan []byte)
	m.running.Go(func() {
		defer end() // ends the statement that the client waits for
		for {
			command, err := readMessage(from)
			if err != nil || command[headerSize] == commandQuit {
				return
			}
			select {
			case commands <- command:
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		select {
		case command := <-commands:
			err := m.answer(ctx, to, command, &database)
			// The session is idle again before the client has its answer, so that a test knows which session the next statement
			// gets.
			if err != nil || to.Flush() != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (m *Multiplexer) logIn(conn io.Writer, from io.Reader) (database string, err error) {
	if _, err := conn.Write(m.greeting); err != nil {
		return "", err
	}
	login, err := readMessage(from)
	if err != nil {
		return "", err
	}
	if database, err = loginDatabase(login); err != nil {
		return "", err
	}
	_, err = conn.Write(packet(login[3]+1, answerOK, 0, 0, autocommit, 0, 0, 0))
	return database, err
}

var useStatement = regexp.MustCompile("(?i)^\\s*USE\\s+`?([^`;\\s]+)`?\\s*;?\\s*$")

// answer lets a session answer the command, and keeps the client's default database in database.
func (m *Multiplexer) answer(ctx context.Context, client *bufio.Writer, command []byte, database *string) error {
	kind, text := command[headerSize], string(command[headerSize+1:])
	if use := useStatement.FindStringSubmatch(text); kind == commandQuery && use != nil {
		kind, text = commandInitDB, use[1]
	}
	wanted := *database
	if kind == commandPing && m.answersPings() {
		_, err := client.Write(packet(1, answerOK, 0, 0, autocommit, 0, 0, 0))
		return err
	}
	switch kind {
	case commandInitDB:
		wanted, command = text, packet(0, commandPing) // the session selects the database before it answers
	case commandQuery, commandPing:
	default:
		_, err := client.Write(refusal(1047, "08S01", "the multiplexer does not know this command"))
		return err
	}
	s, err := m.take(ctx)
	if err != nil {
		return err
	}
	defer m.put(s)
	if err := s.answer(ctx, client, wanted, command); err != nil {
		return err
	}
	if s.database == wanted {
		*database = wanted
	}
	return nil
}
