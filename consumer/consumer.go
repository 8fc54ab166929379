package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// Consumer reads a topic and passes its rows to a handler. Its methods except Run are safe for concurrent use.
type Consumer struct {
	db      *notify.DB
	topic   string
	options Options
	log     *slog.Logger
}

// New returns a consumer of a table of the database. It does not connect.
func New(db *notify.DB, topic string, options Options) (*Consumer, error) {
	if err := ident.Check(topic); err != nil {
		return nil, err
	}
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	if options.Member == "" {
		host, _ := os.Hostname() // the name is for people, so an empty one does no harm
		options.Member = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	log := options.Logger.With("topic", topic)
	if options.Group != "" {
		log = log.With("group", options.Group)
	}
	options.Logger = log
	return &Consumer{db, topic, options, log}, nil
}

// Run reads and handles rows until ctx ends, the handler returns ErrStop, Options.Limit is reached, or, with Options.StopAtEnd, the
// end is reached. It then stores the offset and returns nil. It reconnects after a lost connection, without a limit. It returns
// errors that another attempt would repeat: of a first connection that fails, notify.ErrNoTable and the other errors about the
// table, ErrBelowOffset, notify.ErrNoState, notify.ErrVersion, notify.ErrOptions, a HandlerError, and errors of the server such as
// a missing privilege.
//
// All consumers of a DB share the connections that wait for new rows (see package notify), four for reading, one for the locks of
// groups, and those of the DB's pool. A consumer opens a connection of its own for reading with Options.Where, Mode "poll", Flag
// "row", StopAtEnd or MembersShare, for a handshake, and while it waits for a group's lock that another member holds. A second call
// of Run must not begin before the first has returned.
func (c *Consumer) Run(ctx context.Context, handler Handler) error {
	if handler.handle == nil {
		return fmt.Errorf("consumer: %w: no handler", notify.ErrOptions)
	}
	if handler.tx && c.options.Group == "" {
		return fmt.Errorf("consumer: %w: a handler in a transaction needs a Group, whose offset it commits", notify.ErrOptions)
	}
	waits := c.options.Reconnect()
	l := &connection{Consumer: c, options: c.options, handler: handler, limit: 100}
	l.options.counted = new(atomic.Int64)
	for {
		l.joined = false
		err := l.run(ctx)
		done := err == nil || errors.Is(err, ErrStop) || errors.Is(err, errDrained)
		switch {
		case (done || ctx.Err() != nil) && errors.Is(err, errUnsaved):
			return err
		case done:
			return nil
		case permanent(err):
			return err
		case ctx.Err() != nil: // the end of ctx probably caused err
			return nil //nolint:nilerr // the end of the context is how Run is stopped
		case !l.reached || !l.began && !l.stoodBy && (server.ReadOnly(err) || errors.Is(err, notify.ErrReadOnly) || errors.Is(err, errReplica)):
			return err
		}
		if l.joined {
			waits.Reset()
		}
		wait := waits.NextBackOff()
		if wait == backoff.Stop {
			return err
		}
		c.log.WarnContext(ctx, "the consumer lost its connection or its group; it continues by itself", "error", err, "wait", wait)
		if server.Pause(ctx, wait) != nil {
			return nil //nolint:nilerr // the end of the context is how Run is stopped
		}
	}
}

// permanent reports whether another attempt would fail with err again.
func permanent(err error) bool {
	for _, known := range []error{
		notify.ErrNoTable, notify.ErrNotTopic, ErrBelowOffset, notify.ErrNoState, notify.ErrVersion, notify.ErrOptions, position.ErrDamaged, errTxEnded,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	var failed *HandlerError
	if errors.As(err, &failed) {
		return true
	}
	// If the table is gone, the next attempt describes it again and returns the clearer error, notify.ErrNoTable.
	return server.Permanent(err) && !server.Is(err, server.ErrNoSuchTable)
}

// connection lasts as long as the connections of a Run do. A Run has one connection after another; some fields keep what an earlier
// one found.
type connection struct {
	*Consumer
	options Options
	handler Handler
	reached bool               // the server has answered before
	began   bool               // Run has begun to read before
	stoodBy bool               // another member was active before
	warned  bool               // the warning about a key that is not AUTO_INCREMENT was logged
	joined  bool               // this connection began to read, or to stand by
	limit   int                // rows of the first page
	done    *position.Progress // without a group: where the connection before ended
	origins origins            // the table's
}

func (l *connection) run(ctx context.Context) (err error) {
	t, err := table.Describe(ctx, l.db.Pool(), l.db.Name(), l.topic)
	if err != nil {
		return err
	}
	l.reached = true
	if l.options.MembersShare {
		return l.share(ctx, t)
	}
	handling := context.WithoutCancel(ctx)
	if l.options.Group != "" {
		member, err := l.join(ctx, t)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, member.leave()) }()
		var release context.CancelFunc
		ctx, release = member.lock.Context(ctx)
		defer release()
		// A context of its own, because the lock may be lost after ctx has ended, while the handler still runs.
		handling, release = member.lock.Context(handling)
		defer release()
	}
	rows, err := l.rows(ctx, t, nil)
	if err != nil {
		return err
	}
	defer rows.close()
	var stored ledger
	var begun position.Progress
	switch {
	case l.options.Group != "":
		stored, begun, err = claim(ctx, l.db, t.Name, l.options.Group, l.options.Member, l.options.Reset,
			func() (position.Progress, error) { return l.start(ctx, rows) })
	case l.done != nil:
		begun = *l.done
	default:
		begun, err = l.start(ctx, rows)
	}
	if err != nil {
		return err
	}
	l.options.Reset = false // done
	return l.read(ctx, handling, rows, stored, begun)
}

// start returns where a new or reset group begins, or a reader without a group.
func (l *connection) start(ctx context.Context, rows *rows) (position.Progress, error) {
	l.origins = origins{begins: true}
	begun, err := l.options.begin.start(ctx, rows, l.options.TimeColumn)
	if err == nil && l.options.Group != "" {
		l.log.InfoContext(ctx, "the group begins", "after", begun.Settled)
	}
	return begun, err
}

// session returns a session to read with, and a function that releases it.
func (l *connection) session(ctx context.Context) (*core.Session, func(), error) {
	// A condition of the user may be slow, and a Poll uses the session all the time: other consumers would wait.
	if l.options.MembersShare || l.options.Where != "" || l.options.polls() {
		// It may be idle for as long as a handler takes, and holds no lock.
		session, err := core.NewSession(ctx, l.db, core.SessionOptions{IdleTimeout: 8 * time.Hour, Limit: l.options.askLimit})
		if err != nil {
			return nil, nil, err
		}
		return session, func() { _ = session.Close() }, nil
	}
	return core.SharedSession(ctx, l.db)
}

// rows returns the rows to read. The caller closes them.
func (l *connection) rows(ctx context.Context, t *table.Table, shares *shares) (*rows, error) {
	session, release, err := l.session(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := newRows(session, t, l.options)
	if err != nil {
		release()
		return nil, err
	}
	rows.release = release
	err = l.checkOrder(ctx, rows)
	if err == nil {
		err = rows.all(ctx)
	}
	if err == nil && shares != nil {
		err = rows.share(shares)
	}
	if err == nil {
		err = rows.prepare(ctx)
	}
	if err != nil {
		rows.close()
		return nil, err
	}
	return rows, nil
}

// checkOrder returns the error for a key that is not AUTO_INCREMENT, unless AcceptAnyKey is set.
func (l *connection) checkOrder(ctx context.Context, rows *rows) error {
	key, err := rows.table.Column(rows.keyName)
	if err == nil {
		err = rows.table.InOrder(key)
	}
	if err == nil {
		return nil
	}
	if !l.options.AcceptAnyKey {
		return fmt.Errorf("consumer: %w; Options.AcceptAnyKey (--any-key) reads it anyway", err)
	}
	if !l.warned && (l.options.Group != "" || !l.options.StopAtEnd) {
		l.warned = true
		l.log.WarnContext(ctx, "the key is not AUTO_INCREMENT: a row that is inserted later with a smaller key is lost to this consumer", "key", rows.keyName)
	}
	return nil
}

// read runs the reader and the delivery concurrently.
func (l *connection) read(ctx, handling context.Context, rows *rows, stored ledger, begun position.Progress) error {
	source, grace, err := openSource(ctx, l.db, rows.session, rows.table, l.options.Writers, l.options.Grace)
	if err != nil {
		return err
	}
	if l.options.wrap != nil {
		source = l.options.wrap(source)
	}
	waiter, err := l.waiter(ctx, rows)
	if err != nil {
		return err
	}
	defer func() { _ = waiter.Close() }()
	if auto, ok := waiter.(*core.Auto); ok && !l.options.Strict {
		if rows.ahead = newAhead(rows); rows.ahead != nil {
			auto.Carry(rows.ahead)
		}
	}
	l.log.DebugContext(ctx, "reading", "settled", begun.Settled, "writers", source.name(), "grace", grace)
	if !l.began && l.options.Writers == "" && source.name() == writersUnknown {
		l.log.WarnContext(ctx, "this account can't see open transactions, so a gap in the ids counts as settled after a time: in strict order "+
			"the rows after it wait that long, and a transaction that stays open for longer loses its rows (mqnotify doctor names the missing privilege)", "time", grace)
	}
	if !l.began && rows.session.Capabilities().WritersElsewhere() {
		warnReplica(ctx, l.log, l.options.Grace)
	}
	l.began, l.joined = true, true

	// handling ends when the group's lock is lost. The handler has StopTimeout to finish the current messages.
	handling, release := server.LingerIn(handling, ctx, l.options.StopTimeout)
	defer release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	batches := make(chan batch, 1)
	reader := &reader{
		rows: rows, origins: &l.origins, source: source, grace: l.options.Grace, replication: newReplication(rows.session, l.options.Grace), waiter: waiter, woken: l.options.Woken, waiting: l.options.Waiting, out: batches, log: l.log,
		wm:    newWatermark(begun.Settled, begun.Done.Clone()),
		limit: min(l.limit, l.options.PageRows), pageRows: l.options.PageRows, strict: l.options.Strict, keyed: rows.shares != nil, grouped: l.options.Group != "",
		stopAtEnd: l.options.StopAtEnd, alternate: l.options.Mode == modeHandshake, forget: l.options.forgetGaps,
	}
	if l.options.Group != "" && !rows.messages {
		reader.retries = &retries{topic: rows.table.Name, group: l.options.Group}
	}
	l.origins.group, l.origins.wait, l.origins.read = l.options.Group, l.options.originWait, time.Time{}
	l.origins.known = l.origins.known && l.options.Group == "" // a group reads them from the server, where they are stored
	var reading sync.WaitGroup
	reading.Go(func() {
		if err := reader.run(ctx); errors.Is(err, errDrained) {
			close(batches)
		} else {
			cancel(err)
		}
	})
	delivery := &delivery{handler: l.handler.of(l.options.Group), options: l.options, db: l.db, offset: stored, progress: begun}
	err = delivery.run(ctx, handling, batches)
	cancel(err)
	reading.Wait()
	l.limit = min(100, max(1, reader.limit/4)) // the page may have been too large for the time that a statement may take
	l.done = &delivery.progress
	return err
}

func (l *connection) waiter(ctx context.Context, rows *rows) (core.Waiter, error) {
	head := core.LargestID(rows.table.Name, rows.keyName)
	switch l.options.Flag {
	case flagCounter:
		head = core.FlagCounter(rows.table.Name)
	case flagRow:
		head = core.FlagRow(rows.table.Name)
	}
	if l.options.Flag != "" {
		if _, err := (notify.Flag{Topic: rows.table.Name}).Read(ctx, l.db.Pool()); err != nil {
			return nil, stateError("read flag", err)
		}
	}
	switch {
	case l.options.Mode == modeHandshake:
	case l.options.polls():
		return core.NewPoll(rows.session, head, l.options.Poll()), nil
	default:
		return core.NewAuto(l.db, head, core.AutoOptions{Logger: l.log}), nil
	}
	session, err := core.NewHandshakeSession(ctx, l.db)
	if err != nil {
		return nil, err
	}
	caps := session.Capabilities()
	name := core.HandshakeName(core.Folded(caps, l.db.Name()), core.Folded(caps, rows.table.Name))
	return core.NewHandshake(session, name, head, l.options.Poll()), nil
}
