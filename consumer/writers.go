package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// The values of Options.Writers: the ways to find out which transactions may still fill a gap.
const (
	writersMetadataLocks = "metadata-locks"
	writersInnoDBTrx     = "innodb-trx"
	writersRoutine       = "open-writers"
	writersUnknown       = "unknown"
)

// errStale means that what was read may be older than the call; the reader asks again later.
var errStale = errors.New("the server's view of the transactions is stale")

// source reports which transactions are open. It uses one session.
type source interface {
	// open returns the writers at a time after the call, or errStale if it does not know them. After errStale the time may be earlier,
	// but is after the first of these calls. Any other error means that the source does not work here.
	open(ctx context.Context) (open, error)
	// pace is the minimum time between two calls of open.
	pace() time.Duration
	// late reports whether a writer may take its first id a moment before open can report it.
	late() bool
	name() string
}

// openSource returns a source that works, and the grace period that gaps need in addition. It tries every source, because privileges
// and settings do not show whether one works.
func openSource(ctx context.Context, db *core.DB, session *core.Session, t *table.Table, want string, grace time.Duration) (source, time.Duration, error) {
	exact := time.Duration(0)
	if caps := session.Capabilities(); caps.WritersElsewhere() || caps.MayBeReplica { // writers on other servers hold no lock here
		exact = grace
	}
	if want == "" || want == writersMetadataLocks {
		locks, err := newMetadataLocks(ctx, session, t)
		if err == nil {
			b := &olderWriters{metadataLocks: locks}
			for _, way := range []string{writersInnoDBTrx, writersRoutine} {
				if b.view, err = newInnoDBTrx(ctx, db, session, way); err == nil {
					break
				}
				if err := unfit(err); err != nil {
					return nil, 0, err
				}
			}
			return b, exact, nil
		}
		if err := refuse(want == writersMetadataLocks, err); err != nil {
			return nil, 0, err
		}
	}
	for _, way := range []string{writersInnoDBTrx, writersRoutine} {
		if want != "" && want != way {
			continue
		}
		source, err := newInnoDBTrx(ctx, db, session, way)
		if err == nil {
			return source, exact, nil
		}
		if err := refuse(want == way, err); err != nil {
			return nil, 0, err
		}
	}
	return unknown{}, grace, nil
}

// refuse returns nil if the next way may be tried after err. asked means that the user has chosen this way.
func refuse(asked bool, err error) error {
	switch {
	case unfit(err) != nil:
		return err
	case asked:
		return fmt.Errorf("%w: %w", notify.ErrOptions, err)
	}
	return nil
}

// unfit returns nil if err means that the server can't do this, and err otherwise.
func unfit(err error) error {
	var no noSourceError
	if errors.As(err, &no) || server.NoPrivilege(err) ||
		server.Is(err, server.ErrNoSuchTable, server.ErrUnknownTable, server.ErrBadField, server.ErrBadDatabase,
			server.ErrParse, server.ErrNotSupportedYet, server.ErrUnknown,
			server.ErrNoRoutine, server.ErrRoutineDenied, server.ErrNoSuchDefiner) {
		return nil
	}
	return err
}

// noSourceError is the reason why a source does not work here.
type noSourceError string

func (n noSourceError) Error() string { return string(n) }

// Writers returns the way by which Run finds the topic's open writers here, and the grace period that gaps get in addition: 0 if all
// writers can be seen. It tries the ways over a connection of its own. If Options.Writers is set and does not work, the error says
// why.
func (c *Consumer) Writers(ctx context.Context) (way string, grace time.Duration, err error) {
	t, err := c.table(ctx)
	if err != nil {
		return "", 0, err
	}
	session, err := core.NewSession(ctx, c.db, core.SessionOptions{})
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = session.Close() }()
	source, grace, err := openSource(ctx, c.db, session, t, c.options.Writers, c.options.Grace)
	if err != nil {
		return "", 0, err
	}
	return source.name(), grace, nil
}

// replication detects that the server is a replica, by the transactions of other servers that it has applied since the last
// poll. Their writers can't be seen here.
type replication struct {
	session *core.Session
	grace   time.Duration
	growth  *server.Growth
	certain bool
	doubted time.Time // until then it counts as a replica, because the account lacks the privilege to check

	readOnly bool      // certain only because the server takes no writes, which a promotion changes
	asked    time.Time // when the server's capabilities were read
}

// promotedWait is how often the reader of a read-only server checks whether it takes writes now.
const promotedWait = 5 * time.Second

func newReplication(session *core.Session, grace time.Duration) *replication {
	r := &replication{session: session, grace: grace}
	r.set(session.Capabilities())
	r.asked = time.Time{} // a shared session may be old
	return r
}

func (r *replication) set(caps *server.Capabilities) {
	r.growth, r.certain, r.asked = caps.Growth(), caps.WritersElsewhere(), time.Now()
	r.readOnly = caps.ReadOnly && !caps.Galera && !caps.MultiPrimary
	if caps.MayBeReplica {
		r.doubted = time.Now().Add(r.grace)
	}
}

// applies reports whether rows may come from other servers.
func (r *replication) applies(ctx context.Context) (bool, error) {
	if r.readOnly && time.Since(r.asked) > promotedWait {
		err := r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			caps, err := server.Discover(ctx, conn)
			if err == nil {
				r.set(caps)
			}
			return err
		})
		if err != nil {
			return false, err
		}
	}
	if r.certain {
		return true, nil
	}
	err := r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		r.certain, err = r.growth.Grows(ctx, conn)
		return err
	})
	return r.certain || time.Now().Before(r.doubted), err
}

// unknown is the source that sees no writers.
type unknown struct{}

func (unknown) open(context.Context) (open, error) { return nil, nil }
func (unknown) pace() time.Duration                { return 100 * time.Millisecond } // every poll reads all open gaps again
func (unknown) late() bool                         { return false }
func (unknown) name() string                       { return writersUnknown }

func sourceError(name string, err error) error {
	return fmt.Errorf("consumer: find the open writers by %s: %w", name, err)
}
