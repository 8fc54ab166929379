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

// Options are a consumer's settings; the zero value tails a table from its end
// and stores nothing.
type Options struct {
	// Group is the name under which the offset is stored, 128 characters at most.
	// A group has one active member; the others stand by and take over when it
	// dies, unless MembersShare is set. Empty means that nothing is stored.
	Group string
	// MembersShare makes all members of the group active. Each has its fair share of the
	// group's partitions, by a key of the messages: the messages of a key are handled by one
	// member at a time, in order; see the package comment. The members of a group all share
	// it or none does. It needs a Group, and the Mode "handshake" and the Flag "row" are not for it.
	MembersShare bool
	// Partitions is how many partitions a new group has, 256 at most, and so how many
	// members can be active. 0 means what the group has, 64 for a new one. It is kept with
	// the group: another number is notify.ErrOptions, unless Reset is set.
	Partitions int
	// PartitionBy is the key that partitions go by: a column of the table, compared byte by
	// byte, or else the header of this name. A message without it is its own key. Empty
	// means what the group has; for a new one of a message table the header "key". It is kept
	// with the group as Partitions is.
	PartitionBy string
	// Member names this process in the group's row, 255 characters at most; empty means
	// host and process id.
	Member string
	// From is where to begin when the group has no offset yet:
	//
	//   - "end", or empty, the default: after the rows that are visible now. A row of a transaction that is open now comes when
	//     it commits, if its id is among the newest 10,000.
	//   - "beginning": before the first row.
	//   - "last 100": the end, but for the newest 100 rows, which come first.
	//   - "4711": at the row of this id, whether it is there or not, but not past the table's end.
	//   - "2026-01-31T08:00:00Z", "2026-01-31 08:00:00" or "2026-01-31", in UTC, or "90m" for 90 minutes ago by the server's clock:
	//     at the first row of the time or later, by TimeColumn. Ids and times are taken to go hand in hand up to 10 minutes. Of
	//     rows before the first that become visible later it holds what the end does.
	//   - what Watch was called with.
	From string
	// Reset makes Run begin at From although the group has an offset.
	Reset bool
	// StopAtEnd makes Run return when it has read all that was there. With
	// Strict it waits for the transactions that hold some of it back.
	StopAtEnd bool

	// Limit makes Run return after so many messages that were handled or went to the dead letters. 0 means no limit.
	Limit int

	// Mode is how Run waits for new rows. Empty, the default, waits for hints of the table's wake trigger, of mqnotify_wake,
	// or of the server's GTIDs, and polls where there is none of them; see package notify. "poll" polls the table's largest
	// id, or the flag, with growing waits. "handshake" alternates with one producer of the same Mode on one lock.
	Mode string
	// Strict holds rows back until nothing with a lower id can come any more: a transaction that stays open holds up
	// everything after its first id. Otherwise a row is handed out as soon as it is visible, and one that commits late comes
	// after rows with larger ids.
	Strict bool
	// Flag is what is polled for news. Empty, the default, is the table's largest id, which costs the writers nothing.
	// "counter" is the counter of the one-row flag (notify.Flag). "row" is the flag's row, which is then deleted: it is for
	// one consumer only, and makes an empty Mode poll. The flag's table is made by mqnotify init.
	Flag string
	// Poll makes the waits of the Mode "poll", nil for Fibonacci from 10 ms to 1 s; those of
	// "handshake" without a producer, nil for Fibonacci from 5 ms to 1.5 s.
	Poll func() backoff.BackOff

	// Key is the column to read by: an integer with a unique index, AUTO_INCREMENT unless AcceptAnyKey is set. Empty
	// means the AUTO_INCREMENT column or the primary key. Rows at 0 or below are
	// notify.ErrNotTopic unless AcceptAnyKey is set.
	Key string
	// AcceptAnyKey reads a table that has rows whose key is 0 or less, without these, and a table whose key is not
	// AUTO_INCREMENT: ids that programs make, or that come from a sequence. Both are notify.ErrNotTopic otherwise. Only the AUTO_INCREMENT counter gives a row that is inserted later a larger key. Any other
	// row that is inserted with a smaller key than one that was read before is LOST to this consumer, without a word.
	AcceptAnyKey bool
	// Columns are those of the rows, for a table that is no message table or is to
	// be read as rows; empty means all that there are when Run connects.
	Columns []string
	// Where is an SQL condition that rows must meet. It is sent as it is: never
	// make it of what a stranger wrote.
	Where string
	// TimeColumn is what a position in time goes by; empty means created_at.
	TimeColumn string

	// Writers is how it is known which transactions may still fill a gap. Empty, the default, is the first of these ways that
	// works:
	//
	//   - "metadata-locks" reads performance_schema.metadata_locks: exact. It needs MySQL, SELECT on that table, and the
	//     performance schema switched on. Writers that were open when Run began are known by INNODB_TRX, too, if the account
	//     has one of the two ways below: without it, one that began while the instrument wait/lock/metadata/sql/mdl was off
	//     is not known.
	//   - "innodb-trx" reads information_schema.INNODB_TRX, which needs PROCESS. Every writing transaction of the server
	//     counts, not only this table's.
	//   - "open-writers" is the same for an account without PROCESS. It calls mqnotify_open_writers, which needs EXECUTE on
	//     it; mqnotify init makes it.
	//   - "unknown" needs nothing: a gap counts as settled after Grace.
	Writers string
	// Grace is how long a gap may be filled by a transaction that can't be seen:
	// with the Writers "unknown", and where other servers write to the same tables. A
	// transaction that stays open for longer after it took its ids, and whose rows
	// can't be found by a probe, LOSES its rows to this consumer. 0 means 1 minute.
	Grace time.Duration

	// PageRows is the most that is read, and given to a batch handler, at once. 0
	// means 1000. Large rows make smaller pages, of about 4 MiB.
	PageRows int
	// FlushInterval is how long the offset may lag behind what was handled: 0 means
	// 200 ms, a negative value none. It is stored between two calls of the handler,
	// so a crash repeats the call in hand and what was handled within FlushInterval
	// before that.
	FlushInterval time.Duration
	// MaxAttempts is how often a message's handler may fail before the message goes
	// to the group's dead letters; without a group Run then returns a HandlerError. 0
	// means 5, a negative value no limit. The messages behind it wait meanwhile. The
	// count restarts with the process. When several messages in a row go to the dead
	// letters, Run waits before each further one as Retry says.
	MaxAttempts int
	// Retry makes the waits between two attempts; nil means exponential from 100 ms
	// to 10 s. One that gives up (backoff.Stop) makes the attempt the last.
	Retry func() backoff.BackOff
	// HandlerTimeout ends the context of a handler's call. 0 means never.
	HandlerTimeout time.Duration
	// StopTimeout is how long the message in hand may take after Run's context
	// ended. 0 means 30 s.
	StopTimeout time.Duration
	// Reconnect makes the waits between two attempts to go on after a lost
	// connection; nil means exponential from 50 ms to 5 s. One that gives up makes
	// Run return the error.
	Reconnect func() backoff.BackOff
	// Watch, if not nil, is called with where reading begins, each time it does, and whenever the watermark has moved since: by
	// the handler's goroutine, after the handler. The position is a text such as "after 1041+1043-1050,1052", the watermark and
	// the ids above it that were handled. A reader that keeps its position elsewhere gives it to From.
	Watch func(position string)
	// Woken, if not nil, is called with what ended each wait for new rows, by the
	// goroutine that reads: it must not block. "trigger" is a commit that the table's wake trigger told of; "poll" a head,
	// or a flag, that had moved when it was polled, to which a call of mqnotify_wake, or a commit on a server with GTIDs, may
	// have led; "handshake" the other side of a handshake; "timeout" the bound of the wait.
	Woken func(by string)
	// Waiting is called while rows are held back by an id that an open transaction may still write: after 2 s, and then every
	// 10 s. most is how long they wait at most; 0 means until the transaction ends. It must not block, and is called by
	// another goroutine than the handler. nil means that only the log says so.
	Waiting func(id uint64, most time.Duration)
	// Logger gets what a user may want to know; nil means slog.Default().
	Logger *slog.Logger

	begin      beginning           // From
	counted    *atomic.Int64       // the messages that Limit counts
	forgetGaps bool                // loses rows: for the test that shows it
	wrap       func(source) source // puts a test between the reader and its source
	hasty      bool                // lets partitions go in the middle of the handler's work: for the test that shows it
	originWait time.Duration       // originWait, for a test in a hurry
	lockIdle   time.Duration       // IdleTimeout of the session with the group's lock, for a test in a hurry
}

// polls reports whether the consumer waits with a core.Poll, unless it does with a handshake.
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
		{!utf8.ValidString(o.Group) || strings.HasSuffix(o.Group, " "), "Group is no UTF-8 or ends with a space"}, // one row, two locks
		{len([]rune(o.Member)) > 255 || !utf8.ValidString(o.Member), "Member is longer than 255 characters, or no UTF-8"},
		{o.Reset && o.Group == "", "Reset needs a Group"},
		{o.MembersShare && o.Group == "", "MembersShare needs a Group"},
		{!o.MembersShare && (o.Partitions != 0 || o.PartitionBy != ""), "Partitions and PartitionBy are for MembersShare"},
		{o.Partitions < 0 || o.Partitions > maxPartitions, fmt.Sprintf("Partitions is %d: 1 to %d", o.Partitions, maxPartitions)},
		{o.MembersShare && (o.Mode == modeHandshake || o.Flag == flagRow), "the Mode handshake and the Flag row are for one reader, and with MembersShare there are more"},
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
	if o.lockIdle == 0 {
		o.lockIdle = lockIdle
	}
	return o, nil
}
