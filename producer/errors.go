package producer

import (
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/dberror"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// ErrNoID means that the INSERT returned no id because the table has no AUTO_INCREMENT column. The rows may be stored.
var ErrNoID = errors.New("the INSERT returned no id: the table has no AUTO_INCREMENT column")

// errNotRunning means that Run failed to begin, or has ended.
var errNotRunning = fmt.Errorf("%w: the handshake no longer runs: call Run again", notify.ErrClosed)

// SafeToRetry reports whether an error of this package guarantees that nothing was stored, so that publishing again makes no
// duplicate. It does not predict whether another attempt succeeds.
func SafeToRetry(err error) bool {
	return err != nil && !errors.Is(err, notify.ErrUnknown) && !errors.Is(err, ErrNoID)
}

// doubt returns a notify.ErrUnknown for an error that leaves open whether the commit happened.
func (p *Producer) doubt(err error) error {
	if errors.Is(err, ErrNoID) {
		return err
	}
	if err = dberror.Unknown(err); errors.Is(err, notify.ErrUnknown) {
		p.caps.Store(nil) // the next connection may reach another server
	}
	return err
}

// explain adds the topic and the remedy to an error.
func (p *Producer) explain(err error) error {
	topic := ident.Quote(p.topic)
	switch {
	case server.Is(err, server.ErrNoSuchTable):
		err = fmt.Errorf("%w: make it with `mqnotify init`: %w", notify.ErrNoTable, err)
	case server.Is(err, server.ErrBadField, server.ErrNoDefault, server.ErrNotInsertable):
		err = fmt.Errorf("%w: it is not a message table, which has the columns headers and payload, and a default for every other; "+
			"`mqnotify init` makes such tables: %w", notify.ErrNotTopic, err)
	case server.NoPrivilege(err):
		err = fmt.Errorf("%w: `mqnotify grants` shows what a producer needs: %w", notify.ErrDenied, err)
	case server.ReadOnly(err):
		err = fmt.Errorf("%w: connect to the primary: %w", notify.ErrReadOnly, err)
	case server.Is(err, server.ErrPacketTooLarge), errors.Is(err, mysql.ErrPktTooLarge):
		p.caps.Store(nil) // the server's limit was lowered, or the driver has a lower one of its own
		err = fmt.Errorf("%w: %w", &notify.TooLargeError{What: "message"}, err)
	}
	return fmt.Errorf("producer: publish to %s: %w", topic, err)
}
