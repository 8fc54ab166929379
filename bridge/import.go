package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
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
	// Batch is how many messages one transaction stores at most. 0 means 500.
	Batch int
	// Keep is how long the ids of imported messages are kept. A message that the broker delivers again later is stored twice. 0 means 7
	// days, a negative value forever.
	Keep time.Duration
	// Retry returns the waits between two attempts while the broker or the database is away; nil means exponential from 100 ms to 10 s.
	// If it gives up (backoff.Stop), Run returns the error.
	Retry func() backoff.BackOff
	// Stored, if not nil, is called after each transaction with the number of messages that it stored, and of those that had been
	// stored before.
	Stored func(stored, known int)
	// Logger gets the import's log lines; nil means slog.Default().
	Logger *slog.Logger
}

// Import inserts a broker's messages into a topic. It inserts each message once: the transaction that inserts a message also stores the
// message's id, and the import acknowledges the message after the commit. If the import dies in between, the broker delivers the message
// again, and the next import finds its id.
type Import struct {
	db       *notify.DB
	topic    string
	from     *origin
	options  ImportOptions
	producer *producer.Producer
	patience time.Duration // importPatience; shorter in tests
	most     int           // the limit of messages in the next transaction; halved after one that took too long
	warned   bool          // a warning of messages without an id was logged
	pruned   time.Time
	behind   bool // the last prune did not delete all old ids
	ran      atomic.Bool
}

// importPatience limits each open, transaction and acknowledgement.
const importPatience = 30 * time.Second

// NewImport prepares an import from a URL into a topic. The URL's scheme is nats, redis, amqp or mqtt; docs/guide/import.md lists the
// parameters of each. NewImport does not connect. The caller keeps and closes the DB. The error of a wrong URL is notify.ErrOptions and
// contains no credential.
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
	options.Batch = cmp.Or(options.Batch, 500)
	options.Keep = cmp.Or(options.Keep, 7*24*time.Hour)
	if options.Retry == nil {
		options.Retry = func() backoff.BackOff { return notify.Exponential(100*time.Millisecond, 10*time.Second) }
	}
	options.Logger = cmp.Or(options.Logger, slog.Default()).With("from", from.Name)
	p, err := producer.New(db, topic, producer.Options{Logger: options.Logger}) // the producer adds the topic to its log lines
	if err != nil {
		return nil, err
	}
	options.Logger = options.Logger.With("topic", topic)
	return &Import{db: db, topic: topic, from: from, options: options, producer: p, patience: importPatience, most: options.Batch}, nil
}

// Run imports until ctx ends, and then returns nil. If the broker is away at the start, or refuses the credentials, Run returns an
// OpenError at once. Later it waits for a broker or a database that is away. Other errors are notify.ErrNoState, notify.ErrVersion, notify.ErrNoTable,
// notify.ErrNotTopic, notify.ErrDenied, notify.ErrReadOnly, a *notify.TooLargeError, a PermanentError, or the server's. Run may be
// called once.
func (i *Import) Run(ctx context.Context) error {
	if i.ran.Swap(true) {
		return fmt.Errorf("bridge: %w: Run was called before: make another Import", notify.ErrClosed)
	}
	defer func() { _ = i.producer.Close() }() // at the end its error has no remedy
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
			_ = source.Close() // the broker delivers unacknowledged messages again
		}
	}()
	for waits, fails := i.options.Retry(), false; ; {
		if source == nil {
			source, err = i.open(ctx)
		}
		if err == nil {
			begun := time.Now()
			err = i.pass(ctx, source)
			if err == nil || time.Since(begun) > time.Minute { // it waited for a message meanwhile
				fails = false
			}
			if err == nil {
				continue
			}
			_ = source.Close()
			source = nil
		}
		if ctx.Err() != nil {
			return nil
		}
		if !fails { // a limit of Retry counts from now on
			fails = true
			waits.Reset()
		}
		wait := waits.NextBackOff()
		if unmendable(err) || wait == backoff.Stop {
			return err
		}
		i.options.Logger.WarnContext(ctx, "import interrupted; trying again", "error", err, "wait", wait)
		if server.Pause(ctx, wait) != nil {
			return nil
		}
		err = nil
	}
}

// check returns an error if the topic can't store messages, before the first message arrives.
func (i *Import) check(ctx context.Context) error {
	t, err := table.Describe(ctx, i.db.Pool(), i.db.Name(), i.topic)
	if errors.Is(err, table.ErrNoTable) {
		return fmt.Errorf("bridge: %w: %w", notify.ErrNoTable, err)
	}
	if err != nil {
		return fmt.Errorf("bridge: read the topic's columns: %w", err)
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

// unmendable reports whether no retry can succeed after err.
func unmendable(err error) bool {
	return errors.Is(err, notify.ErrNoState) || errors.Is(err, notify.ErrVersion) || errors.Is(err, notify.ErrNoTable) ||
		errors.Is(err, notify.ErrNotTopic) || errors.Is(err, notify.ErrDenied) ||
		server.Permanent(err) && !errors.Is(err, errStored) ||
		errors.As(err, new(*PermanentError)) || errors.As(err, new(*notify.TooLargeError))
}

// pass stores and acknowledges one batch. It stores received messages even if ctx ends meanwhile.
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
	if errors.As(err, &large) && large.at > 0 { // store the messages before it; the broker delivers them again, and their ids are known then
		err = errors.Join(err, i.put(handling, got[:large.at]))
	}
	if handling.Err() != nil { // the messages are large, or the database is slow
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

// put stores the messages and reports their numbers to Options.Stored.
func (i *Import) put(ctx context.Context, got []received) error {
	stored, err := i.store(ctx, got)
	if err == nil && i.options.Stored != nil {
		i.options.Stored(stored, len(got)-stored)
	}
	return err
}

// oversized is the error of a message that is too large for the server.
type oversized struct {
	at  int // its index in the batch
	id  string
	err error
}

func (e *oversized) Error() string {
	return fmt.Sprintf("the message %q is too large: it and the messages behind it stay at the broker until the server accepts it (max_allowed_packet) or it is deleted there: %v", e.id, e.err)
}
func (e *oversized) Unwrap() error { return e.err }

// store inserts the new messages and their ids in one transaction, and returns the number of new messages. If another import of the
// same origin inserts one of the ids at the same time, the transaction fails.
func (i *Import) store(ctx context.Context, got []received) (stored int, err error) {
	err = i.producer.Transact(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		known, err := i.known(ctx, tx, got)
		if err != nil {
			return err
		}
		var messages []producer.Message
		var from []int // from[k] is the index of messages[k] in got
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
				if server.Is(err, server.ErrDuplicate) {
					err = fmt.Errorf("%w: %w", errStored, err)
				}
				return i.stateError("store the ids", err)
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

// errStored means that another import has stored one of the ids at the same time.
var errStored = errors.New("another import has stored it")

// imported is the prefix for imported headers with a reserved name, because a broker's clients must not decide which groups get a
// message.
const imported = "imported-"

// topicHeaders converts a broker's headers to a row's. It replaces invalid UTF-8, which only a payload may contain. It unpacks the
// headers that a bridge has packed into mqnotify-headers, unless their names are taken or reserved.
func topicHeaders(m producer.Message) producer.Message {
	headers := make(map[string]string, len(m.Headers))
	for name, value := range m.Headers {
		headers[strings.ToValidUTF8(name, "\ufffd")] = strings.ToValidUTF8(value, "\ufffd")
	}
	m.Headers = headers
	packed := map[string]string{}
	if json.Unmarshal([]byte(headers[fieldHeaders]), &packed) == nil { // otherwise there are none, or another program wrote them
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

// known returns the ids of the messages that were stored before.
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

// prune deletes some old ids. It fails if their table does not exist.
func (i *Import) prune(ctx context.Context) error {
	i.pruned = time.Now()
	if i.options.Keep < 0 {
		_, err := i.db.Pool().ExecContext(ctx, "DELETE FROM "+schema.ImportTable+" WHERE FALSE")
		return i.stateError("find the table of ids", err)
	}
	// Delete few rows at a time, because each is locked, but more than a transaction adds, so that the table does not grow without limit.
	most := int64(max(pruneRows, 2*i.options.Batch))
	age := int64(i.options.Keep.Seconds())
	result, err := i.db.Pool().ExecContext(ctx, "DELETE FROM "+schema.ImportTable+
		" WHERE topic = ? AND source = ? AND seen_at < "+schema.SecondsAgo+" LIMIT ?",
		i.topic, i.from.Key, age, age, most)
	if err != nil {
		return i.stateError("forget old ids", err)
	}
	n, err := result.RowsAffected()
	i.behind = n == most
	return err
}

// pruneRows is how many old ids prune deletes at a time, unless Batch is large.
const pruneRows = 5000

func (i *Import) stateError(verb string, err error) error {
	switch {
	case err == nil:
		return nil
	case server.Is(err, server.ErrNoSuchTable):
		err = notify.ErrNoState
	case server.NoPrivilege(err):
		err = fmt.Errorf("%w: `mqnotify grants --role importer` shows what it needs: %w", notify.ErrDenied, err)
	case server.ReadOnly(err):
		err = fmt.Errorf("%w: connect to the primary: %w", notify.ErrReadOnly, err)
	}
	return fmt.Errorf("bridge: %s: %w", verb, err)
}

func (i *Import) warn(ctx context.Context) {
	if !i.warned {
		i.options.Logger.WarnContext(ctx, "messages without an id arrive: if the broker delivers one again, it is stored twice")
		i.warned = true
	}
}
