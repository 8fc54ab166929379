package producer

import (
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/server"
)

// Errors that callers decide on, with errors.Is. After all but ErrUnknown and
// ErrNoID nothing was stored.
var (
	// ErrUnknown means that the connection ended, or the context, after the commit
	// was asked for and before its answer came: the messages are stored, or they
	// are not. Publishing them again may store them twice; not doing so may lose
	// them. A caller that can tell, by a key in the messages, looks first.
	ErrUnknown = errors.New("no answer to the commit: the messages may be stored or not")
	// ErrNoTopic means that there is no table of the topic's name.
	ErrNoTopic = errors.New("the topic does not exist")
	// ErrNotTopic means that the table is not one that messages can be written to:
	// it lacks the columns, or has others that need a value.
	ErrNotTopic = errors.New("the table is not a message table")
	// ErrNoID means that the rows were inserted and got no id, since the table has
	// no AUTO_INCREMENT column. They may be stored.
	ErrNoID = errors.New("no id was given out: the table has no AUTO_INCREMENT column")
	// ErrDenied means that the account lacks a privilege.
	ErrDenied = errors.New("the account may not do this")
	// ErrReadOnly means that the server takes no writes.
	ErrReadOnly = errors.New("the server is read-only")
	// ErrTooLarge means that a message fits into no packet. errors.As with a
	// *TooLargeError tells more, if it was found before anything was sent.
	ErrTooLarge = errors.New("the message is too large")
	// ErrReserved means that a header's name begins with "mqnotify-", in capitals or not. Such headers decide
	// which groups get a message.
	ErrReserved = errors.New("the header's name is reserved")
	// ErrClosed means that the producer was closed.
	ErrClosed = errors.New("the producer is closed")
	// ErrNotRunning means that the Run of a Handshake has not begun or has ended.
	ErrNotRunning = errors.New("the handshake is not running: call Run")
)

// TooLargeError is an ErrTooLarge with its figures.
type TooLargeError struct {
	Message int // which of the messages, from 0
	Size    int // its bytes in a packet
	Limit   int // the server's max_allowed_packet
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("message %d takes %d bytes, and the server's max_allowed_packet is %d: "+
		"raise it there, or make the message smaller", e.Message+1, e.Size, e.Limit)
}

// Is makes every TooLargeError an ErrTooLarge.
func (e *TooLargeError) Is(target error) bool { return target == ErrTooLarge }

// SafeToRetry reports whether an error of this package guarantees that nothing was
// stored, so that publishing again makes no duplicate. It does not say that another
// try would succeed.
func SafeToRetry(err error) bool {
	return err != nil && !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrNoID)
}

// doubt makes an ErrUnknown of an error that answers no commit. The server's own
// error is an answer (a statement that fails is rolled back), and two of the
// driver's mean that nothing was sent.
func (p *Producer) doubt(err error) error {
	if err == nil || server.Number(err) != 0 || errors.Is(err, ErrNoID) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrPktTooLarge) {
		return err
	}
	p.caps.Store(nil) // the next connection may be to another server
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// explain names the topic in an error, and what to do about it.
func (p *Producer) explain(err error) error {
	topic := ident.Quote(p.topic)
	switch {
	case server.Is(err, server.ErrNoSuchTable):
		err = fmt.Errorf("%w: make it with `mqnotify init`: %w", ErrNoTopic, err)
	case server.Is(err, server.ErrBadField, server.ErrNoDefault, server.ErrNotInsertable):
		err = fmt.Errorf("%w: it needs the columns headers and payload, and a default for every other; "+
			"`mqnotify init` makes such tables: %w", ErrNotTopic, err)
	case server.NoPrivilege(err):
		err = fmt.Errorf("%w: `mqnotify grants` shows what a producer needs: %w", ErrDenied, err)
	case server.ReadOnly(err):
		err = fmt.Errorf("%w: connect to the primary: %w", ErrReadOnly, err)
	case server.Is(err, server.ErrPacketTooLarge), errors.Is(err, mysql.ErrPktTooLarge):
		p.caps.Store(nil) // it was lowered, or the driver has a lower one of its own
		err = fmt.Errorf("%w: raise the server's max_allowed_packet, or the DSN's maxAllowedPacket: %w", ErrTooLarge, err)
	}
	return fmt.Errorf("producer: publish to %s: %w", topic, err)
}
