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

// The values of Options.Writers: the ways of knowing which transactions may still fill a gap.
const (
	writersMetadataLocks = "metadata-locks"
	writersInnoDBTrx     = "innodb-trx"
	writersRoutine       = "open-writers"
	writersUnknown       = "unknown"
)

// errStale says that what was read may be older than the head: try again later.
var errStale = errors.New("the server's view of the transactions is stale")

// source tells which transactions are open now. It uses one session.
type source interface {
	// open returns errStale when it can't tell of now. Any other error means that
	// the source does not work here.
	open(ctx context.Context) (open, error)
	// pace is the least time between two questions.
	pace() time.Duration
	// late tells that a writer may have taken its first id a moment before it shows.
	late() bool
	name() string
}

// openSource finds a source that works, and tells how long gaps must be given
// grace besides. Each is tried, not believed.
func openSource(ctx context.Context, session *core.Session, t *table.Table, want string, grace time.Duration) (source, time.Duration, error) {
	exact := time.Duration(0)
	if caps := session.Capabilities(); caps.WritersElsewhere() || caps.MayBeReplica { // the writers' transactions hold no lock here
		exact = grace
	}
	if want == "" || want == writersMetadataLocks {
		locks, err := newMetadataLocks(ctx, session, t)
		if err == nil {
			b := &olderWriters{metadataLocks: locks}
			for _, way := range []string{writersInnoDBTrx, writersRoutine} {
				if b.view, err = newInnoDBTrx(ctx, session, way); err == nil {
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
		source, err := newInnoDBTrx(ctx, session, way)
		if err == nil {
			return source, exact, nil
		}
		if err := refuse(want == way, err); err != nil {
			return nil, 0, err
		}
	}
	return unknown{}, grace, nil
}

// refuse returns nil for an error that makes the next way be tried.
func refuse(asked bool, err error) error {
	switch {
	case unfit(err) != nil:
		return err
	case asked:
		return fmt.Errorf("%w: %w", notify.ErrOptions, err)
	}
	return nil
}

// unfit returns nil for an error by which a server says that it can't do a thing,
// the error itself for any other.
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

// noSourceError says why a source does not work here.
type noSourceError string

func (n noSourceError) Error() string { return string(n) }

// Writers tells which way of knowing the topic's open writers Run takes here, by
// trying it over a connection of its own, and how long gaps are given grace
// besides: 0 where what is known is all there is. With Options.Writers set, the
// error says why that way does not work.
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
	source, grace, err := openSource(ctx, session, t, c.options.Writers, c.options.Grace)
	if err != nil {
		return "", 0, err
	}
	return source.name(), grace, nil
}

// replication notices that the server is a replica, by what it has applied of other servers' transactions since the last
// poll. Those who write there are not seen here.
type replication struct {
	session *core.Session
	growth  *server.Growth
	certain bool
	doubted time.Time // until then it counts as a replica, for want of a privilege to see
}

func newReplication(session *core.Session, grace time.Duration) *replication {
	caps := session.Capabilities()
	r := &replication{session: session, growth: caps.Growth(), certain: caps.WritersElsewhere()}
	if caps.MayBeReplica {
		r.doubted = time.Now().Add(grace)
	}
	return r
}

// applies reports whether rows may come from other servers.
func (r *replication) applies(ctx context.Context) (bool, error) {
	if r.certain {
		return true, nil
	}
	err := r.session.Do(ctx, func(conn *sqlx.Conn) (err error) {
		r.certain, err = r.growth.Grows(ctx, conn)
		return err
	})
	return r.certain || time.Now().Before(r.doubted), err
}

// unknown is the source that knows of no writer.
type unknown struct{}

func (unknown) open(context.Context) (open, error) { return nil, nil }
func (unknown) pace() time.Duration                { return 100 * time.Millisecond } // it reads every open gap again
func (unknown) late() bool                         { return false }
func (unknown) name() string                       { return writersUnknown }

func sourceError(name string, err error) error {
	return fmt.Errorf("consumer: know the writers by %s: %w", name, err)
}
