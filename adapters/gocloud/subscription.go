package gocloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"gocloud.dev/gcerrors"
	"gocloud.dev/pubsub"
	"gocloud.dev/pubsub/batcher"
	"gocloud.dev/pubsub/driver"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
)

// forever is the number of retries and of lapses of a message, which have no limit. A receiver that vanishes adds a lapse to all messages
// that its worker had claimed, received or not.
const forever = math.MaxInt32

// SubscriptionOptions are a subscription's settings. The zero value is ready for use.
type SubscriptionOptions struct {
	// Visibility is the time after which another receiver gets the messages of a dead one. 0 means 30 s. A receiver that lives keeps
	// its messages until it answers.
	Visibility time.Duration
	// InFlight limits the messages that are received and not answered. 0 means 1000.
	InFlight int
	// Logger gets the worker's log lines. A nack is logged at level debug. nil means slog.Default().
	Logger *slog.Logger
}

// OpenSubscription opens a subscription of a topic. It does not connect. Receive connects, and returns NotFound if the subscription
// does not exist. The caller keeps db, and closes it after the subscription's Shutdown.
func OpenSubscription(db *notify.DB, topic, name string, options SubscriptionOptions) *pubsub.Subscription {
	return pubsub.NewSubscription(newSubscription(db, topic, name, options),
		&batcher.Options{MaxBatchSize: 100, MaxHandlers: 2}, &batcher.Options{MaxBatchSize: 1000, MaxHandlers: 2})
}

func newSubscription(db *notify.DB, topic, name string, options SubscriptionOptions) *subscription {
	options.InFlight = cmp.Or(options.InFlight, 1000)
	options.Logger = slog.New(calm{cmp.Or(options.Logger, slog.Default()).Handler()})
	ctx, cancel := context.WithCancel(context.Background())
	return &subscription{
		db: db, name: topic + "/" + name, options: options,
		come: make(chan *delivery), ctx: ctx, cancel: cancel,
	}
}

// subscription implements [driver.Subscription] with a worker, whose handlers wait until the messages that ReceiveBatch has returned
// are answered.
type subscription struct {
	db      *notify.DB
	name    string
	options SubscriptionOptions
	owned   bool // Close closes db
	come    chan *delivery
	ctx     context.Context //nolint:containedctx // the worker's: Close ends it
	cancel  context.CancelFunc

	mu      sync.Mutex
	running chan struct{} // closed when the worker has ended; nil until it begins
	failed  error
}

var _ driver.Subscription = (*subscription)(nil)

// delivery is a task with its handler.
type delivery struct {
	task     queue.Task
	answered chan error // one slot
}

// calm lowers the log lines of nacks to level debug, because the receiver has sent the nack itself.
type calm struct{ slog.Handler }

func (c calm) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, is := a.Value.Any().(error); is && errors.Is(err, errNack) {
			r.Level = slog.LevelDebug
		}
		return true
	})
	if !c.Enabled(ctx, r.Level) {
		return nil
	}
	return c.Handler.Handle(ctx, r)
}

func (c calm) WithAttrs(attrs []slog.Attr) slog.Handler { return calm{c.Handler.WithAttrs(attrs)} }

func (c calm) WithGroup(name string) slog.Handler { return calm{c.Handler.WithGroup(name)} }

var errNack = errors.New("gocloud: not acknowledged")

// begin starts the worker unless it runs.
func (s *subscription) begin() (running <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		select {
		case <-s.running: // it has failed: start it again
		default:
			return s.running
		}
	}
	ended := make(chan struct{})
	s.running, s.failed = ended, nil
	go func() {
		defer close(ended)
		err := s.work()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = err
	}()
	return ended
}

func (s *subscription) work() error {
	q, err := queue.New(s.db, s.name, queue.Options{Logger: s.options.Logger})
	if err != nil {
		return err
	}
	defer func() { _ = q.Close() }()
	return q.Work(s.ctx, queue.WorkerOptions{
		Concurrency: s.options.InFlight, Visibility: s.options.Visibility, StopTimeout: -1, Lapses: forever,
		Backoff: func(int) time.Duration { return 0 },
	}, s.handle)
}

// handle gives a task to ReceiveBatch and waits for the answer.
func (s *subscription) handle(ctx context.Context, task queue.Task) error {
	d := &delivery{task, make(chan error, 1)}
	select {
	case s.come <- d:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-d.answered:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ReceiveBatch implements [driver.Subscription].
func (s *subscription) ReceiveBatch(ctx context.Context, most int) (messages []*driver.Message, err error) {
	ended := s.begin()
	wait := time.NewTimer(time.Second)
	defer wait.Stop()
	for len(messages) < most {
		var d *delivery
		if len(messages) == 0 {
			select {
			case d = <-s.come:
			case <-ended:
				err := s.failure()
				if s.IsRetryable(err) { // Receive does not return the error
					s.options.Logger.WarnContext(ctx, "the subscription failed; trying again", "queue", s.name, "error", err)
				}
				return nil, err
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-wait.C:
				return nil, nil
			}
		} else {
			select {
			case d = <-s.come:
			default:
				return messages, nil
			}
		}
		metadata, body, err := unwrap(d.task.Payload)
		if err != nil { // no receiver can handle it
			d.answered <- fmt.Errorf("%w: %w", notify.ErrDead, err)
			continue
		}
		messages = append(messages, &driver.Message{
			LoggableID: fmt.Sprintf("%s %d", s.name, d.task.ID), Body: body, Metadata: metadata, AckID: d,
			AsFunc: func(i any) bool {
				p, ok := i.(*queue.Task)
				if ok {
					*p = d.task
				}
				return ok
			},
		})
	}
	return messages, nil
}

var errEnded = errors.New("gocloud: the subscription is closed")

func (s *subscription) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.failed, errEnded)
}

// SendAcks implements [driver.Subscription]. The tasks are done when it returns nil. After an error it may be called again with the
// same ids.
func (s *subscription) SendAcks(ctx context.Context, ids []driver.AckID) error {
	tx, err := s.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	// In the order of the ids, so that two calls at the same time do not deadlock.
	byID := func(a, b driver.AckID) int { return cmp.Compare(a.(*delivery).task.ID, b.(*delivery).task.ID) }
	for _, id := range slices.SortedFunc(slices.Values(ids), byID) {
		err := queue.FinishTx(ctx, tx, id.(*delivery).task)
		if err != nil && !errors.Is(err, queue.ErrClaimLost) { // it was done before, or another receiver has it
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	answer(ids, nil)
	return nil
}

// CanNack implements [driver.Subscription].
func (*subscription) CanNack() bool { return true }

// SendNacks implements [driver.Subscription]. The worker gives the tasks back at once.
func (*subscription) SendNacks(_ context.Context, ids []driver.AckID) error {
	answer(ids, errNack)
	return nil
}

func answer(ids []driver.AckID, err error) {
	for _, id := range ids {
		select {
		case id.(*delivery).answered <- err:
		default: // already answered
		}
	}
}

// IsRetryable implements [driver.Subscription]. It returns true for all transient errors, because any other error ends the subscription
// for good. It is safe to acknowledge twice and to start the worker again.
func (*subscription) IsRetryable(err error) bool {
	return server.ConnectionLost(err) || server.Number(err) != 0 && !server.Permanent(err)
}

// As implements [driver.Subscription]. It sets a **notify.DB to the database.
func (s *subscription) As(i any) bool { return asDB(s.db, i) }

// ErrorAs implements [driver.Subscription] with errors.As.
func (*subscription) ErrorAs(err error, i any) bool { return errors.As(err, i) }

// ErrorCode implements [driver.Subscription].
func (*subscription) ErrorCode(err error) gcerrors.ErrorCode { return code(err) }

// Close implements [driver.Subscription]. Other receivers get the messages that were not answered.
func (s *subscription) Close() error {
	s.cancel()
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	if running != nil {
		<-running
	}
	if s.owned {
		return s.db.Close()
	}
	return nil
}
