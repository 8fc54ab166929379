package mysqltest

import (
	"bufio"
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/go-sql-driver/mysql"
)

var errNotConnected = errors.New("mysqltest: the session is not connected")

// sharedSession is a session of a multiplexer. The driver logs in, and then the multiplexer uses the driver's connection. Only
// one goroutine at a time uses a session.
type sharedSession struct {
	server   *mysql.Config
	login    driver.Conn // nil when not connected
	raw      net.Conn
	from     *bufio.Reader
	greeting []byte
	database string // the default database, or ""
}

// connect logs in, without a database.
func (s *sharedSession) connect(ctx context.Context) error {
	cfg := s.server.Clone()
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		greeting, err := readMessage(conn)
		if err == nil {
			err = plain(greeting)
		}
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		s.raw, s.from, s.greeting, s.database = conn, bufio.NewReader(conn), greeting, ""
		return greeted{conn, io.MultiReader(bytes.NewReader(greeting), conn)}, nil
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	login, err := connector.Connect(ctx)
	if err != nil {
		return fmt.Errorf("connect to the server: %w", err)
	}
	s.login = login
	return nil
}

func (s *sharedSession) close() {
	if s.login != nil {
		_ = s.login.Close() // fails if the connection is broken
		s.login = nil
	}
}

// answer runs the client's command in the client's default database, and forwards the response. The end of the response stays
// in the client's buffer, for the caller to flush. After an error the response is incomplete. When the context ends, answer
// closes the connection, and the server then ends the client's statement.
func (s *sharedSession) answer(ctx context.Context, client *bufio.Writer, database string, command []byte) error {
	if database == "" && s.database != "" {
		s.close() // no command removes a default database
	}
	if s.during(ctx, s.ping) != nil { // wait_timeout or a KILL may have ended the session
		if err := s.connect(ctx); err != nil {
			return err
		}
	}
	return s.during(ctx, func() error {
		if s.database != database {
			response, err := s.ask(packet(0, append([]byte{commandInitDB}, database...)...))
			if err != nil {
				return err
			}
			if response[headerSize] == answerError {
				_, err := client.Write(response)
				return err
			}
			s.database = database
		}
		return s.exchange(client, command)
	})
}

// during runs f. When the context ends, it closes the connection. After an error the session is not connected.
func (s *sharedSession) during(ctx context.Context, f func() error) error {
	if s.login == nil {
		return errNotConnected
	}
	raw := s.raw
	uncut := context.AfterFunc(ctx, func() { _ = raw.Close() })
	err := f()
	if !uncut() || err != nil {
		s.close()
	}
	return err
}

func (s *sharedSession) ping() error {
	response, err := s.ask(packet(0, commandPing))
	if err == nil && response[headerSize] != answerOK { // an error: the server says why it ends the session
		err = errNotConnected
	}
	return err
}

// ask sends a command and returns the response.
func (s *sharedSession) ask(command []byte) ([]byte, error) {
	var response bytes.Buffer
	to := bufio.NewWriter(&response)
	err := errors.Join(s.exchange(to, command), to.Flush())
	return response.Bytes(), err
}

// exchange sends a command and forwards the response.
func (s *sharedSession) exchange(to *bufio.Writer, command []byte) error {
	if _, err := s.raw.Write(command); err != nil {
		return err
	}
	return relay(to, s.from)
}

// greeted is a connection whose greeting has been read already.
type greeted struct {
	net.Conn
	from io.Reader
}

func (g greeted) Read(p []byte) (int, error) { return g.from.Read(p) }
