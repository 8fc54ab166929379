package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
)

// Options are a bridge's settings. Consumer.Group is required; everything else has defaults.
type Options struct {
	// Consumer has the settings for reading the topic. The group's one active member sends, the others stand by. From is the end of
	// the topic by default, for a new group. New ignores MaxAttempts, HandlerTimeout and FlushInterval: the bridge stores the offset
	// after each page. PageRows is 8000 by default.
	Consumer consumer.Options
	// InFlight is how many sent messages may be unconfirmed. 0 means the destination's default: 100 to 8000, 1 for a webhook.
	InFlight int
	// MaxAttempts is how often a message that the destination refuses (PoisonError) is sent before it goes to the group's dead
	// letters. 0 means 3.
	MaxAttempts int
	// StopOnPoison makes Run return the PoisonError instead, with the offset before the message.
	StopOnPoison bool
	// SendTimeout is how long the destination may take to confirm the messages of one Send. 0 means 30 s, or one second more than
	// Destination.Timeout if that is longer.
	SendTimeout time.Duration
	// Retry returns the waits between two attempts while the destination is away or refuses; nil means exponential from 100 ms to
	// 10 s. The waits restart after a confirmed message. If Retry gives up (backoff.Stop), Run returns the error; a refused
	// message goes to the dead letters.
	Retry func() backoff.BackOff
	// Report, if not nil, is called after each page, by the goroutine that sends. It must not block.
	Report func(Progress)
	// Logger gets the bridge's log lines; nil means slog.Default().
	Logger *slog.Logger
}

// pageRows is the default of PageRows. After each page the offset is stored, which costs a commit. A crash repeats at most a page.
const pageRows = 8000

// Bridge sends a topic's rows to a destination.
type Bridge struct {
	db      *notify.DB
	topic   string
	to      *Destination
	options Options
}

// New prepares a bridge. It does not connect. The caller keeps and closes the DB.
func New(db *notify.DB, topic string, to *Destination, options Options) (*Bridge, error) {
	if options.Consumer.Group == "" {
		return nil, fmt.Errorf("bridge: %w: Consumer.Group is empty: name the group whose offset the bridge stores", notify.ErrOptions)
	}
	if options.Consumer.MembersShare {
		return nil, fmt.Errorf("bridge: %w: Consumer.MembersShare: a destination needs the rows in one order", notify.ErrOptions)
	}
	if options.InFlight < 0 || options.MaxAttempts < 0 || options.SendTimeout < 0 {
		return nil, fmt.Errorf("bridge: %w: InFlight, MaxAttempts or SendTimeout is negative", notify.ErrOptions)
	}
	options.InFlight = cmp.Or(options.InFlight, max(1, to.InFlight))
	options.MaxAttempts = cmp.Or(options.MaxAttempts, 3)
	options.SendTimeout = cmp.Or(options.SendTimeout, max(30*time.Second, to.Timeout+time.Second))
	if options.Retry == nil {
		options.Retry = func() backoff.BackOff { return notify.Exponential(100*time.Millisecond, 10*time.Second) }
	}
	options.Logger = cmp.Or(options.Logger, slog.Default()).With("to", to.Name)
	c := &options.Consumer
	c.Logger = cmp.Or(c.Logger, options.Logger)
	c.Strict = c.Strict || to.Strict
	c.PageRows = cmp.Or(c.PageRows, pageRows)
	c.MaxAttempts, c.HandlerTimeout, c.FlushInterval = -1, 0, -1
	if _, err := consumer.New(db, topic, *c); err != nil {
		return nil, err
	}
	return &Bridge{db, topic, to, options}, nil
}

// Run sends the topic's existing and new rows until ctx ends, or with Consumer.StopAtEnd until the end of the topic. Then it stores the
// offset and returns nil. When ctx ends, messages in flight have Consumer.StopTimeout to be confirmed.
//
// If the destination is away at the start, or refuses the credentials, Run returns an OpenError at once. Later it waits for a
// destination that is away. Other errors are those of consumer.Consumer.Run, a PermanentError, and with StopOnPoison a PoisonError.
func (b *Bridge) Run(ctx context.Context) error {
	s := &shell{Bridge: b, waits: b.options.Retry()}
	defer s.close()
	if err := s.open(ctx); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return &OpenError{b.to.Name, err}
	}
	c, err := consumer.New(b.db, b.topic, b.options.Consumer)
	if err != nil {
		return err
	}
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	err = c.Run(running, consumer.Batch(func(handling context.Context, messages []consumer.Message) error {
		err := s.deliver(running, handling, messages)
		if end := (&endError{}); errors.As(err, &end) {
			fail(end)
		}
		return err
	}))
	if end := (&endError{}); errors.As(context.Cause(running), &end) {
		return errors.Join(end.err, err)
	}
	return err
}

// OpenError means that the destination, or an import's origin, could not be opened when Run began.
type OpenError struct {
	Name string
	Err  error
}

func (e *OpenError) Error() string { return fmt.Sprintf("bridge: open %s: %v", e.Name, e.Err) }
func (e *OpenError) Unwrap() error { return e.Err }

// endError wraps an error that ends Run.
type endError struct{ err error }

func (e *endError) Error() string { return e.err.Error() }
func (e *endError) Unwrap() error { return e.err }
