package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// ImportOptions are an import's settings. The zero value is ready for use.
type ImportOptions struct {
	// Batch is how many messages are stored in one transaction at most. 0 means 500.
	Batch int
	// Keep is how long the ids of imported messages are remembered: one that the broker
	// gives again later than that is stored twice. 0 means 7 days, a negative value for
	// ever.
	Keep time.Duration
	// Retry makes the waits between two attempts while broker or database is away; nil
	// means exponential from 100 ms to 10 s. One that gives up (backoff.Stop) makes Run
	// return the error.
	Retry func() backoff.BackOff
	// Stored, if not nil, is called after each transaction with the number of messages
	// that it stored and of those that were there already.
	Stored func(stored, known int)
	// Logger gets what a user may want to know; nil means slog.Default().
	Logger *slog.Logger
}

// Import brings a broker's messages into a topic: each is inserted once, by the id
// that it has there, and acknowledged after the commit. What dies in between comes
// again, and is known by its id, which is stored in the transaction that inserts it.
type Import struct {
	db       *notify.DB
	topic    string
	from     *origin
	options  ImportOptions
	producer *producer.Producer
	patience time.Duration // importPatience, less in tests
	most     int           // of messages in a transaction, less after one that took too long
	warned   bool          // of messages without an id
	pruned   time.Time
	behind   bool // there are more old ids than were deleted then
}

// importPatience bounds one open, one transaction and one acknowledgement.
const importPatience = 30 * time.Second

// NewImport prepares an import of a URL into a topic. The URL's scheme is nats, redis, amqp or mqtt; docs/guide/bridge.md lists the parameters of
// each. It does not connect. The caller keeps and closes the DB. The error of a wrong URL is notify.ErrOptions and shows no credential.
func NewImport(db *notify.DB, from, topic string, options ImportOptions) (*Import, error) {
	o, err := parseOrigin(from, topic)
	if err != nil {
		return nil, err
	}
	return newImport(db, o, topic, options)
}

func newImport(db *notify.DB, from *origin, topic string, options ImportOptions) (*Import, error) {
	if options.Batch < 0 {
		return nil, fmt.Errorf("bridge: %w: Batch is negative", notify.ErrOptions)
	}
	if options.Batch == 0 {
		options.Batch = 500
	}
	if options.Keep == 0 {
		options.Keep = 7 * 24 * time.Hour
	}
	if options.Retry == nil {
		options.Retry = func() backoff.BackOff { return notify.Exponential(100*time.Millisecond, 10*time.Second) }
	}
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	options.Logger = options.Logger.With("from", from.Name)
	p, err := producer.New(db, topic, producer.Options{Logger: options.Logger}) // which names the topic itself
	if err != nil {
		return nil, err
	}
	options.Logger = options.Logger.With("topic", topic)
	return &Import{db: db, topic: topic, from: from, options: options, producer: p, patience: importPatience, most: options.Batch}, nil
}

// Run imports until the context ends, and then returns nil. A broker that is away at
// the start, or refuses the credentials, is an OpenError at once; one that goes away
// later is waited for, and so is the database. Other errors are notify.ErrNoState,
// notify.ErrNoTable, ErrNotTopic, ErrDenied and ErrReadOnly, a *notify.TooLargeError, a
// PermanentError, or the server's. Run may be called once.
func (i *Import) Run(ctx context.Context) error {
	defer func() { _ = i.producer.Close() }() // it fails at nothing that matters any more
	err := i.prune(ctx)
	if err == nil {
		err = i.check(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	source, err := i.open(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil
	case err != nil:
		return &OpenError{i.from.Name, err}
	}
	i.options.Logger.InfoContext(ctx, "importing")
	defer func() {
		if source != nil {
			_ = source.Close() // what was not acknowledged comes again
		}
	}()
	for waits := i.options.Retry(); ; {
		if source == nil {
			source, err = i.open(ctx)
		}
		if err == nil {
			if err = i.pass(ctx, source); err == nil {
				waits.Reset()
				continue
			}
			_ = source.Close()
			source = nil
		}
		if ctx.Err() != nil {
			return nil
		}
		wait := waits.NextBackOff()
		if unmendable(err) || wait == backoff.Stop {
			return err
		}
		i.options.Logger.WarnContext(ctx, "import is interrupted; it goes on by itself", "error", err, "wait", wait)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		err = nil
	}
}

// check tells that the topic takes no messages before the first one comes.
func (i *Import) check(ctx context.Context) error {
	t, err := table.Describe(ctx, i.db.Pool(), i.db.Name(), i.topic)
	if errors.Is(err, table.ErrNoTable) {
		return fmt.Errorf("bridge: %w: %w", notify.ErrNoTable, err)
	}
	if err != nil {
		return fmt.Errorf("bridge: look at the topic: %w", err)
	}
	for _, name := range []string{"headers", "payload"} {
		if _, err := t.Column(name); err != nil {
			return fmt.Errorf("bridge: %w: %w", notify.ErrNotTopic, err)
		}
	}
	return nil
}

func (i *Import) open(ctx context.Context) (messageSource, error) {
	ctx, cancel := context.WithTimeout(ctx, i.patience)
	defer cancel()
	return i.from.Open(ctx)
}

// unmendable reports whether another try can't mend err.
func unmendable(err error) bool {
	for _, known := range []error{
		notify.ErrNoState, notify.ErrNoTable, notify.ErrNotTopic, notify.ErrDenied,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	var permanent *PermanentError
	var large *notify.TooLargeError
	return errors.As(err, &permanent) || errors.As(err, &large)
}

// pass takes what the source has over. What was received is stored even when the
// context ends meanwhile: it is there already.
func (i *Import) pass(ctx context.Context, source messageSource) error {
	got, err := source.Receive(ctx, i.most)
	if err != nil {
		return fmt.Errorf("bridge: receive: %w", err)
	}
	if len(got) == 0 {
		return nil
	}
	handling, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.patience)
	defer cancel()
	err = i.put(handling, got)
	var large *oversized
	if errors.As(err, &large) && large.at > 0 { // what is in front of it is not its fault; it comes again, and is known then
		err = errors.Join(err, i.put(handling, got[:large.at]))
	}
	if handling.Err() != nil { // large ones, or a slow database
		i.most = max(1, i.most/2)
	}
	if err != nil {
		return fmt.Errorf("bridge: store: %w", err)
	}
	i.most = min(2*i.most, i.options.Batch)
	if err := source.Ack(handling); err != nil {
		return fmt.Errorf("bridge: acknowledge: %w", err)
	}
	if i.behind || time.Since(i.pruned) > time.Minute {
		return i.prune(handling)
	}
	return nil
}

// put stores and counts.
func (i *Import) put(ctx context.Context, got []received) error {
	stored, err := i.store(ctx, got)
	if err == nil && i.options.Stored != nil {
		i.options.Stored(stored, len(got)-stored)
	}
	return err
}

// oversized is a message that the server can't take.
type oversized struct {
	at  int // among those that were received
	id  string
	err error
}

func (e *oversized) Error() string {
	return fmt.Sprintf("the message %q is too large: it stays at the broker, and those behind it, until the server takes it or it is deleted there: %v", e.id, e.err)
}
func (e *oversized) Unwrap() error { return e.err }

// store inserts those of the messages that are new, and their ids, in one transaction.
// Another import of the same origin that inserts the same id makes it fail as a whole.
func (i *Import) store(ctx context.Context, got []received) (stored int, err error) {
	err = i.producer.Transact(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		known, err := i.known(ctx, tx, got)
		if err != nil {
			return err
		}
		var messages []producer.Message
		var from []int // of each the place in got
		var ids []any
		for at, m := range got {
			if m.ID == "" {
				i.warn(ctx)
			} else {
				if known[m.key()] {
					continue
				}
				known[m.key()] = true
				ids = append(ids, i.topic, i.from.Key, m.key())
			}
			messages, from = append(messages, topicHeaders(m.Message)), append(from, at)
		}
		if len(ids) > 0 {
			rows := strings.TrimSuffix(strings.Repeat("(?,?,?),", len(ids)/3), ",")
			if _, err := tx.ExecContext(ctx, "INSERT INTO "+schema.ImportTable+" (topic, source, message_id) VALUES "+rows, ids...); err != nil {
				return fmt.Errorf("note the ids: %w", err)
			}
		}
		stored = len(messages)
		_, err = i.producer.PublishTx(ctx, tx, messages...)
		if large := (&notify.TooLargeError{}); errors.As(err, &large) && large.Size > 0 {
			err = &oversized{from[large.Index], got[from[large.Index]].ID, err}
		}
		return err
	})
	return stored, err
}

// imported stands in front of a header's name that is reserved here: a broker's clients must not decide which groups get a message.
const imported = "imported-"

// topicHeaders makes a row's headers of a message's: valid UTF-8, which only a payload may lack, and with those that a
// bridge has put into mqnotify-headers under their own names again, unless the name is taken or reserved.
func topicHeaders(m producer.Message) producer.Message {
	headers := make(map[string]string, len(m.Headers))
	for name, value := range m.Headers {
		headers[strings.ToValidUTF8(name, "\ufffd")] = strings.ToValidUTF8(value, "\ufffd")
	}
	m.Headers = headers
	packed := map[string]string{}
	if json.Unmarshal([]byte(headers[fieldHeaders]), &packed) == nil { // else there are none, or they are another program's
		delete(headers, fieldHeaders)
		maps.DeleteFunc(packed, func(name, value string) bool {
			_, taken := headers[name]
			if taken || ours(name) {
				return false
			}
			headers[name] = value
			return true
		})
		if len(packed) > 0 {
			headers[fieldHeaders] = packedHeaders(packed)
		}
	}
	for name, value := range maps.Clone(headers) {
		if ours(name) {
			delete(headers, name)
			headers[imported+name] = value
		}
	}
	return m
}

// known are those of the ids that are there.
func (i *Import) known(ctx context.Context, tx *sqlx.Tx, got []received) (map[string]bool, error) {
	args := []any{i.topic, i.from.Key}
	for _, m := range got {
		if m.ID != "" {
			args = append(args, m.key())
		}
	}
	there := map[string]bool{}
	if len(args) == 2 {
		return there, nil
	}
	var ids []string
	err := tx.SelectContext(ctx, &ids, "SELECT message_id FROM "+schema.ImportTable+" WHERE topic = ? AND source = ? AND message_id IN (?"+
		strings.Repeat(",?", len(args)-3)+")", args...)
	if err != nil {
		return nil, i.stateError("look for the ids", err)
	}
	for _, id := range ids {
		there[id] = true
	}
	return there, nil
}

// prune forgets some old ids, and finds out whether their table is there.
func (i *Import) prune(ctx context.Context) error {
	i.pruned = time.Now()
	if i.options.Keep < 0 {
		_, err := i.db.Pool().ExecContext(ctx, "DELETE FROM "+schema.ImportTable+" WHERE FALSE")
		return i.stateError("find the table of ids", err)
	}
	// Few at a time, because each is locked, but more than a transaction adds, or the table would grow without a limit.
	most := int64(max(pruneRows, 2*i.options.Batch))
	result, err := i.db.Pool().ExecContext(ctx, "DELETE FROM "+schema.ImportTable+
		" WHERE topic = ? AND source = ? AND seen_at < NOW(6) - INTERVAL ? SECOND LIMIT ?",
		i.topic, i.from.Key, int64(i.options.Keep.Seconds()), most)
	if err != nil {
		return i.stateError("forget old ids", err)
	}
	n, err := result.RowsAffected()
	i.behind = n == most
	return err
}

// pruneRows is how many old ids are deleted at a time.
const pruneRows = 5000

func (i *Import) stateError(verb string, err error) error {
	switch {
	case err == nil:
		return nil
	case server.Is(err, server.ErrNoSuchTable):
		err = notify.ErrNoState
	case server.NoPrivilege(err):
		err = fmt.Errorf("the account lacks a privilege that `mqnotify grants` names: %w", err)
	}
	return fmt.Errorf("bridge: %s: %w", verb, err)
}

func (i *Import) warn(ctx context.Context) {
	if !i.warned {
		i.options.Logger.WarnContext(ctx, "messages without an id come in: one that the broker gives again is stored twice")
		i.warned = true
	}
}
