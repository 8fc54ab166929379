package doctor

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// multiplexer is a proxy as some pools are: it hands the statements of a client's
// connection to several sessions of the server. It knows of MySQL's protocol what
// that takes: packets, and logging in without a password.
type multiplexer struct {
	server string
	deal   dealing

	mu      sync.Mutex
	conns   []net.Conn
	waiting map[net.Conn]bool // clients that have no answer yet
	end     sync.WaitGroup
}

// dealing tells to which of a client's sessions its statement goes.
type dealing func(statement int, othersWait bool) (session int)

const sessionsEach = 3

func toOne(int, bool) int { return 0 }

func inTurn(statement int, _ bool) int { return statement % sessionsEach }

func toAnotherWhenBusy(_ int, othersWait bool) int {
	if othersWait {
		return 1
	}
	return 0
}

func multiplex(tb testing.TB, server string, deal dealing) (addr string) {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	m := &multiplexer{server: server, deal: deal, waiting: map[net.Conn]bool{}}
	m.end.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			m.end.Go(func() { m.serve(m.track(client)) })
		}
	})
	tb.Cleanup(func() {
		listener.Close()
		m.closeAll()
		m.end.Wait()
	})
	return listener.Addr().String()
}

func (m *multiplexer) track(conn net.Conn) net.Conn {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = append(m.conns, conn)
	return conn
}

func (m *multiplexer) closeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, conn := range m.conns {
		conn.Close()
	}
}

// serve ends when the client goes. A failure closes the connection, which the
// client under test reports.
func (m *multiplexer) serve(client net.Conn) {
	defer client.Close()
	sessions, err := m.logIn(client)
	defer func() {
		for _, s := range sessions {
			s.Close()
		}
	}()
	if err != nil {
		return
	}
	// A client says nothing before it has its answer: only one session answers at a time.
	for _, s := range sessions {
		m.end.Go(func() { _, _ = io.Copy(answers{m, client}, s) })
	}
	const quit = 1
	from := bufio.NewReader(client)
	for i := 0; ; i++ {
		statement, err := readPacket(from)
		if err != nil || statement[4] == quit {
			return
		}
		to := m.deal(i, m.ask(client))
		if _, err := sessions[to].Write(statement); err != nil {
			return
		}
	}
}

// ask notes that the client waits for an answer, and tells whether others do.
func (m *multiplexer) ask(client net.Conn) (others bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	others = len(m.waiting) > 0
	m.waiting[client] = true
	return others
}

// answers is the way back to a client.
type answers struct {
	m      *multiplexer
	client net.Conn
}

func (a answers) Write(p []byte) (int, error) {
	a.m.mu.Lock()
	delete(a.m.waiting, a.client)
	a.m.mu.Unlock()
	return a.client.Write(p)
}

// logIn shows the client the greeting of the first session, and gives what it
// answers to all of them.
func (m *multiplexer) logIn(client net.Conn) (sessions []net.Conn, err error) {
	var answer, welcome []byte
	for i := range sessionsEach {
		session, err := new(net.Dialer).DialContext(context.Background(), "tcp", m.server)
		if err != nil {
			return sessions, err
		}
		sessions = append(sessions, m.track(session))
		greeting, err := readPacket(session)
		if err != nil {
			return sessions, err
		}
		if i == 0 {
			if _, err := client.Write(greeting); err != nil {
				return sessions, err
			}
			if answer, err = readPacket(client); err != nil {
				return sessions, err
			}
		}
		if welcome, err = authenticate(session, answer); err != nil {
			return sessions, err
		}
	}
	welcome[3] = answer[3] + 1 // the next in the client's sequence
	_, err = client.Write(welcome)
	return sessions, err
}

// authenticate logs in without a password, whatever the plugin, and returns the
// packet that says that it is done.
func authenticate(session net.Conn, answer []byte) ([]byte, error) {
	const done, another = 0x00, 0xfe
	if _, err := session.Write(answer); err != nil {
		return nil, err
	}
	for {
		packet, err := readPacket(session)
		switch {
		case err != nil:
			return nil, err
		case packet[4] == done:
			return packet, nil
		case packet[4] != another:
			return nil, fmt.Errorf("log in: %q", packet[4:])
		}
		if _, err := session.Write([]byte{0, 0, 0, packet[3] + 1}); err != nil {
			return nil, err
		}
	}
}

// readPacket reads a packet with its header: three bytes of length, one of sequence.
func readPacket(r io.Reader) ([]byte, error) {
	header := make([]byte, 4)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	length := binary.LittleEndian.Uint32(append(slices.Clone(header[:3]), 0))
	if length == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	body := make([]byte, length)
	_, err := io.ReadFull(r, body)
	return slices.Concat(header, body), err
}
