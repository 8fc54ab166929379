package consumer

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/notify"
)

// The values of Options.Mode, of Options.Flag, and of Options.Woken's argument.
const (
	modePoll      = "poll"
	modeHandshake = "handshake"

	flagCounter = "counter"
	flagRow     = "row"

	wakeTrigger   = "trigger"
	wakePoll      = "poll"
	wakeHandshake = "handshake"
	wakeTimeout   = "timeout"
)

// Options are a consumer's settings. The zero value tails a table from its end and stores nothing.
type Options struct {
	// Group is the name under which the offset is stored, at most 128 characters. A group has one active member; the others
	// stand by, and one takes over when it dies, unless MembersShare is set. Empty means that nothing is stored.
	Group string
	// MembersShare makes all members of the group active. Every member has its fair share of the group's partitions, by a key of
	// the messages. One member at a time handles the messages of a key, in order; see the package comment. All members of a
	// group must set it, or none. It needs a Group, and excludes the Mode "handshake" and the Flag "row".
	MembersShare bool
	// Partitions is the number of partitions of a new group, at most 256, which is also the maximum number of active members. 0
	// means the group's number, 64 for a new one. The group stores it: another number is notify.ErrOptions, unless Reset is set.
	Partitions int
	// PartitionBy is the key of the partitions: a column of the table, compared byte by byte, or else the header of this name.
	// A message without it is its own key. Empty means the group's key; for a new group of a message table it is the header
	// "key". The group stores it as it does Partitions. The column's values must not change: a row whose value changes between the
	// reads of two members may be handled by neither.
	PartitionBy string
	// Member names this process in the group's row, at most 255 characters; empty means host and process id.
	Member string
	// From is where to begin if the group has no offset yet:
	//
	//   - "end", or empty, the default: after the rows that are visible now. A row of a transaction that is open now is delivered
	//     when it commits, if its id is among the newest 10,000.
	//   - "beginning": before the first row.
	//   - "last 100": at the newest 100 rows; otherwise as "end".
	//   - "4711": at the row of this id, whether it exists or not, but not past the table's end.
	//   - "2026-01-31T08:00:00Z", "2026-01-31 08:00:00" or "2026-01-31", in UTC, or "90m" for 90 minutes ago by the server's clock:
	//     at the first row of that time or later, by TimeColumn. It assumes that ids and times have the same order, except within
	//     10 minutes. For earlier rows that become visible later the rule of "end" holds.
	//   - a position that Watch was called with.
	From string
	// Reset makes Run begin at From although the group has an offset. A consumer that stands by does so when it takes over.
	Reset bool
	// StopAtEnd makes Run return when it has read all rows that existed. With Strict it also waits for the transactions that
	// hold some of them back.
	StopAtEnd bool

	// Limit makes Run return after this many messages were handled or became dead letters. 0 means no limit.
	Limit int

	// Mode is how Run waits for new rows. Empty, the default, waits for hints of the table's wake trigger, of mqnotify_wake,
	// or of the server's GTIDs, and polls if there are none; see package notify. "poll" polls the table's largest
	// id, or the flag, with growing waits. "handshake" alternates with one producer of the same Mode on one lock.
	Mode string
	// Strict holds rows back until no row with a lower id can appear any more: a transaction that stays open delays
	// all rows after its first id. Without Strict a row is handed out as soon as it is visible, and one that commits late comes
	// after rows with larger ids.
	Strict bool
	// Flag is what Run polls for changes. Empty, the default, is the table's largest id, which costs the writers nothing.
	// "counter" is the counter of the one-row flag (notify.Flag). "row" is the flag's row, which Run deletes; it is for
	// one consumer only, and makes an empty Mode poll. mqnotify init creates the flag's table.
	Flag string
	// Poll returns the waits of the Mode "poll"; nil means Fibonacci from 10 ms to 1 s. For "handshake" it returns the waits
	// without a producer; nil means Fibonacci from 5 ms to 1.5 s.
	Poll func() backoff.BackOff

	// Key is the column to read by: an integer with a unique index, AUTO_INCREMENT unless AcceptAnyKey is set. Empty
	// means the AUTO_INCREMENT column or the primary key.
	Key string
	// AcceptAnyKey allows rows whose key is 0 or less, which are not read, and a key that is not AUTO_INCREMENT, such as ids
	// that programs or a sequence assign. Both are notify.ErrNotTopic otherwise. Only an AUTO_INCREMENT counter guarantees that a
	// later row has a larger key. With any other key, a row that is inserted later with a smaller key than one that was read
	// is LOST to this consumer, without an error.
	AcceptAnyKey bool
	// Columns are the columns of the rows, for a table that is not a message table or is read as rows; empty means
	// all columns that exist when Run connects.
	Columns []string
	// Where is an SQL condition that rows must meet. It is sent as it is: never build it from untrusted input.
	// A read that takes longer than 10 minutes with it counts as a lost connection.
	Where string
	// TimeColumn is the column of a From that is a time; empty means created_at.
	TimeColumn string

	// Writers is how Run finds out which transactions may still fill a gap. Empty, the default, is the first of these ways that
	// works:
	//
	//   - "metadata-locks" reads performance_schema.metadata_locks: exact. It needs MySQL, SELECT on that table, and the
	//     performance schema switched on. If the account can also use one of the two ways below, Run finds the writers that were
	//     open when it began by INNODB_TRX. Otherwise it misses a writer that began while the instrument
	//     wait/lock/metadata/sql/mdl was off.
	//   - "innodb-trx" reads information_schema.INNODB_TRX, which needs PROCESS. Every writing transaction of the server
	//     counts, not only this table's.
	//   - "open-writers" is the same for an account without PROCESS. It calls mqnotify_open_writers, which needs EXECUTE on
	//     it; mqnotify init creates it.
	//   - "unknown" needs nothing: a gap counts as settled after Grace.
	Writers string
	// Grace is how long a gap waits for a transaction that can't be seen: with the Writers "unknown", and if other servers write
	// to the same tables. A transaction that stays open for longer after it took its ids, and whose rows a probe can't find,
	// LOSES its rows to this consumer. 0 means 1 minute.
	Grace time.Duration

	// PageRows is the maximum number of rows that are read, and passed to a batch handler, at once. 0 means 1000. Large rows
	// make smaller pages, of about 4 MiB.
	PageRows int
	// FlushInterval is how long the offset may lag behind the handled messages: 0 means 200 ms, a negative value none. Run
	// stores it between two calls of the handler. After a crash the interrupted call is repeated, and the messages that were
	// handled within FlushInterval before it.
	FlushInterval time.Duration
	// MaxAttempts is how often a message's handler may fail before the message goes to the group's dead letters; without a group
	// Run then returns a HandlerError. 0 means 5, a negative value no limit. The messages of a page that has failed that often are
	// handled one by one, and each may fail as often again. The messages behind it wait in the meantime. The
	// count restarts with the process. When several messages in a row have become dead letters, Run waits before each further
	// one as Retry says.
	MaxAttempts int
	// Retry returns the waits between two attempts; nil means exponential from 100 ms to 10 s. backoff.Stop makes the attempt
	// the last.
	Retry func() backoff.BackOff
	// HandlerTimeout ends the context of a handler's call. 0 means never.
	HandlerTimeout time.Duration
	// StopTimeout is how long the handler may continue after Run's context ended. 0 means 30 s.
	StopTimeout time.Duration
	// Reconnect returns the waits before Run reconnects after a lost connection; nil means exponential from 50 ms to 5 s.
	// backoff.Stop makes Run return the error.
	Reconnect func() backoff.BackOff
	// Watch, if not nil, is called with the position whenever reading begins and whenever the watermark has moved since, by the
	// handler's goroutine, after the handler. The position is a text such as "after 1041+1043-1050,1052": the watermark and
	// the handled ids above it. A program that stores its position elsewhere passes it to From.
	Watch func(position string)
	// Woken, if not nil, is called with the cause that ended each wait for new rows, by the goroutine that reads: it must not
	// block. "trigger" is a hint of the table's wake trigger. "poll" is a head or a flag that had moved when it was polled, which
	// a call of mqnotify_wake or a commit on a server with GTIDs may have caused. "handshake" is the other side of a handshake,
	// "timeout" the bound of the wait.
	Woken func(by string)
	// Waiting, if not nil, is called while rows are held back by an id that an open transaction may still write: after 2 s, and
	// then every 10 s. most is the longest time that they will still wait; 0 means until the transaction ends. It must not
	// block, and another goroutine than the handler's calls it. The log says the same.
	Waiting func(id uint64, most time.Duration)
	// Logger gets warnings, failed attempts and the like; nil means slog.Default().
	Logger *slog.Logger

	begin      beginning           // From, parsed
	counted    *atomic.Int64       // the messages that Limit counts
	forgetGaps bool                // loses rows: for the test that shows it
	wrap       func(source) source // lets a test wrap the source
	hasty      bool                // releases partitions while the handler runs: for the test that shows the effect
	originWait time.Duration       // originWait, shorter for a test
	askLimit   time.Duration       // askLimit, shorter for a test
	lockIdle   time.Duration       // IdleTimeout of the session with the group's lock, shorter for a test
}

// polls reports whether the consumer waits with a core.Poll, unless its Mode is "handshake".
func (o Options) polls() bool {
	return o.Mode == modePoll ||
		o.Flag == flagRow || // its row must be deleted by its only reader
		o.StopAtEnd // it waits for open transactions only
}

// withDefaults checks the options and fills in what zero means.
func (o Options) withDefaults() (Options, error) {
	for _, wrong := range []struct {
		is   bool
		text string
	}{
		{len([]rune(o.Group)) > 128, "Group is longer than 128 characters"},
		{!utf8.ValidString(o.Group) || strings.HasSuffix(o.Group, " "), "Group is not UTF-8 or ends with a space"}, // the rows of "a" and "a " are one, their locks two
		{len([]rune(o.Member)) > 255 || !utf8.ValidString(o.Member), "Member is longer than 255 characters, or not UTF-8"},
		{o.Reset && o.Group == "", "Reset needs a Group"},
		{o.MembersShare && o.Group == "", "MembersShare needs a Group"},
		{!o.MembersShare && (o.Partitions != 0 || o.PartitionBy != ""), "Partitions and PartitionBy are for MembersShare"},
		{o.Partitions < 0 || o.Partitions > maxPartitions, fmt.Sprintf("Partitions is %d: 1 to %d", o.Partitions, maxPartitions)},
		{o.MembersShare && (o.Mode == modeHandshake || o.Flag == flagRow), "the Mode handshake and the Flag row are for a single reader, and MembersShare has several"},
		{!utf8.ValidString(o.PartitionBy) || strings.ContainsAny(o.PartitionBy, "\"\\\x00\n\r") || len(o.PartitionBy) > 255,
			"PartitionBy is longer than 255 bytes, or has a quote, a backslash or a line break"},
		{!slices.Contains([]string{"", modePoll, modeHandshake}, o.Mode),
			fmt.Sprintf("no Mode %q: poll, handshake or empty", o.Mode)},
		{o.Flag != "" && o.Flag != flagCounter && o.Flag != flagRow, fmt.Sprintf("no Flag %q: counter or row", o.Flag)},
		{!slices.Contains([]string{"", writersMetadataLocks, writersInnoDBTrx, writersRoutine, writersUnknown}, o.Writers),
			fmt.Sprintf("no Writers %q: %s, %s, %s or %s", o.Writers, writersMetadataLocks, writersInnoDBTrx, writersRoutine, writersUnknown)},
		{o.PageRows < 0, "PageRows is negative"},
		{o.Limit < 0, "Limit is negative"},
		{o.Grace < 0, "Grace is negative"},
		{o.HandlerTimeout < 0, "HandlerTimeout is negative"},
		{o.StopTimeout < 0, "StopTimeout is negative"},
	} {
		if wrong.is {
			return o, fmt.Errorf("consumer: %w: %s", notify.ErrOptions, wrong.text)
		}
	}
	if o.Key != "" {
		if err := ident.Check(o.Key); err != nil {
			return o, err
		}
	}
	var err error
	if o.begin.From, err = position.Parse(o.From); err != nil {
		return o, fmt.Errorf("consumer: %w: From: %w", notify.ErrOptions, err)
	}
	if o.Grace == 0 {
		o.Grace = time.Minute
	}
	if o.PageRows == 0 {
		o.PageRows = 1000
	}
	if o.FlushInterval == 0 {
		o.FlushInterval = 200 * time.Millisecond
	}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = 5
	}
	if o.Poll == nil && o.Mode == modeHandshake {
		o.Poll = func() backoff.BackOff {
			return &notify.Fibonacci{Min: 5 * time.Millisecond, Max: 1500 * time.Millisecond}
		}
	}
	if o.Poll == nil {
		o.Poll = func() backoff.BackOff { return &notify.Fibonacci{Jitter: 0.1} }
	}
	if o.Retry == nil {
		o.Retry = func() backoff.BackOff { return notify.Exponential(100*time.Millisecond, 10*time.Second) }
	}
	if o.Reconnect == nil {
		o.Reconnect = func() backoff.BackOff { return notify.Exponential(50*time.Millisecond, 5*time.Second) }
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = 30 * time.Second
	}
	if o.TimeColumn == "" {
		o.TimeColumn = "created_at"
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.counted = new(atomic.Int64)
	if o.originWait == 0 {
		o.originWait = originWait
	}
	if o.askLimit == 0 {
		o.askLimit = askLimit
	}
	if o.lockIdle == 0 {
		o.lockIdle = lockIdle
	}
	return o, nil
}
