package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
)

// Options are a bridge's settings. Consumer.Group must be set; all else has
// defaults.
type Options struct {
	// Consumer is how the topic is read. A group's one active member sends; others
	// stand by. Its From, for a group that is new, is the end of the topic by default.
	// Its MaxAttempts, HandlerTimeout and FlushInterval are the bridge's own affair: the
	// offset is stored after each page. PageRows is 8000 by default.
	Consumer consumer.Options
	// InFlight is how many messages may be under way unconfirmed, 0 the destination's
	// own number: 100 to 8000, 1 for a webhook.
	InFlight int
	// MaxAttempts is how often a message that the destination refuses (PoisonError) is
	// sent before it goes to the group's dead letters. 0 means 3.
	MaxAttempts int
	// StopOnPoison makes Run return the PoisonError instead, the offset before it.
	StopOnPoison bool
	// SendTimeout is how long the destination may take to confirm what it was sent at
	// once. 0 means 30 s, or a second more than Destination.Timeout where that is longer.
	SendTimeout time.Duration
	// Retry makes the waits between two attempts while the destination is away or
	// refuses; nil means exponential from 100 ms to 10 s. The waits restart when a message
	// was confirmed. If Retry gives up (backoff.Stop), Run returns the error.
	Retry func() backoff.BackOff
	// Report, if not nil, is called after each page, by the goroutine that sends: it
	// must not block. See Progress.
	Report func(Progress)
	// Logger gets what a user may want to know; nil means slog.Default().
	Logger *slog.Logger
}

// pageRows is how many rows a page has, after which the offset is stored: it costs a
// commit, and what a crash repeats is a page at most.
const pageRows = 8000

// Bridge takes a topic's rows to a destination.
type Bridge struct {
	db      *notify.DB
	topic   string
	to      *Destination
	options Options
}

// New prepares a bridge. It does not connect. The caller keeps and closes the DB.
func New(db *notify.DB, topic string, to *Destination, options Options) (*Bridge, error) {
	if options.Consumer.Group == "" {
		return nil, fmt.Errorf("bridge: %w: it needs a Group, whose offset says what was sent", notify.ErrOptions)
	}
	if options.InFlight < 0 || options.MaxAttempts < 0 || options.SendTimeout < 0 {
		return nil, fmt.Errorf("bridge: %w: InFlight, MaxAttempts or SendTimeout is negative", notify.ErrOptions)
	}
	if options.InFlight == 0 {
		options.InFlight = max(1, to.InFlight)
	}
	if options.MaxAttempts == 0 {
		options.MaxAttempts = 3
	}
	if options.SendTimeout == 0 {
		options.SendTimeout = max(30*time.Second, to.Timeout+time.Second)
	}
	if options.Retry == nil {
		options.Retry = func() backoff.BackOff { return notify.Exponential(100*time.Millisecond, 10*time.Second) }
	}
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	options.Logger = options.Logger.With("to", to.Name)
	c := &options.Consumer
	if c.Logger == nil {
		c.Logger = options.Logger
	}
	if to.Strict {
		c.Strict = true
	}
	if c.PageRows == 0 {
		c.PageRows = pageRows
	}
	c.MaxAttempts, c.HandlerTimeout, c.FlushInterval = -1, 0, -1
	if _, err := consumer.New(db, topic, *c); err != nil {
		return nil, err
	}
	return &Bridge{db, topic, to, options}, nil
}

// Run sends what the topic has and gets until the context ends, or with
// Consumer.StopAtEnd the end is reached: then it returns nil, with the offset
// stored. What is under way when the context ends is given Consumer.StopTimeout.
//
// A destination that is away at the start, or refuses the credentials, is an OpenError
// at once; one that goes away later is waited for. Other errors are those of
// consumer.Consumer.Run, a PermanentError, and with StopOnPoison a PoisonError.
func (b *Bridge) Run(ctx context.Context) error {
	s := &shell{Bridge: b, waits: b.options.Retry()}
	defer s.close()
	if err := s.open(ctx); err != nil {
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

// OpenError is a destination that could not be opened when the run began.
type OpenError struct {
	Name string
	Err  error
}

func (e *OpenError) Error() string { return fmt.Sprintf("bridge: open %s: %v", e.Name, e.Err) }
func (e *OpenError) Unwrap() error { return e.Err }

// endError ends the run.
type endError struct{ err error }

func (e *endError) Error() string { return e.err.Error() }
func (e *endError) Unwrap() error { return e.err }
