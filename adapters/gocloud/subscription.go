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

// forever is how often a message that is refused comes again.
const forever = math.MaxInt32

// SubscriptionOptions are a subscription's settings. The zero value is ready for use.
type SubscriptionOptions struct {
	// Visibility is after how long a message comes to another receiver when its own has
	// died. 0 means 30 s. A receiver that lives keeps its messages until it answers.
	Visibility time.Duration
	// InFlight is how many messages are received and not answered at most. 0 means 1000.
	InFlight int
	// Logger gets what the worker says; that a message was refused is a debug line. nil means slog.Default.
	Logger *slog.Logger
}

// OpenSubscription opens a subscription of a topic. It does not connect: Receive does,
// and returns NotFound where there is none. The caller keeps db, and closes it after the
// subscription's Shutdown.
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

// subscription implements [driver.Subscription]: a worker whose handlers wait for the
// answers to what ReceiveBatch has handed out.
type subscription struct {
	db      *notify.DB
	name    string
	options SubscriptionOptions
	owned   bool // db is closed with it
	come    chan *delivery
	ctx     context.Context //nolint:containedctx // the worker's: Close ends it
	cancel  context.CancelFunc

	mu      sync.Mutex
	running chan struct{} // closed when the worker has ended, nil before it began
	failed  error
}

var _ driver.Subscription = (*subscription)(nil)

// delivery is a task with its handler.
type delivery struct {
	task     queue.Task
	answered chan error // one slot
}

// calm logs that a task failed as a debug line if it was refused, because its receiver knows that.
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

// begin starts the worker, unless it runs.
func (s *subscription) begin() (running <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		select {
		case <-s.running: // it failed: once more
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
		Concurrency: s.options.InFlight, Visibility: s.options.Visibility, StopTimeout: -1,
		Backoff: func(int) time.Duration { return 0 },
	}, s.handle)
}

// handle hands a task to a receiver and waits for the answer.
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
				if s.IsRetryable(err) { // Receive does not return it
					s.options.Logger.WarnContext(ctx, "the subscription does not come to work and begins again", "queue", s.name, "error", err)
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
		if err != nil { // no receiver could answer it
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

// SendAcks implements [driver.Subscription]: the tasks are done when it returns. It may be
// called again with the same ids after any error.
func (s *subscription) SendAcks(ctx context.Context, ids []driver.AckID) error {
	tx, err := s.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	// In one order, so that two who acknowledge at once don't deadlock.
	byID := func(a, b driver.AckID) int { return cmp.Compare(a.(*delivery).task.ID, b.(*delivery).task.ID) }
	for _, id := range slices.SortedFunc(slices.Values(ids), byID) {
		err := queue.FinishTx(ctx, tx, id.(*delivery).task)
		if err != nil && !errors.Is(err, queue.ErrClaimLost) { // done before, or another's by now
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

// SendNacks implements [driver.Subscription]: the worker gives the tasks back at once.
func (*subscription) SendNacks(_ context.Context, ids []driver.AckID) error {
	answer(ids, errNack)
	return nil
}

func answer(ids []driver.AckID, err error) {
	for _, id := range ids {
		select {
		case id.(*delivery).answered <- err:
		default: // it was answered before
		}
	}
}

// IsRetryable implements [driver.Subscription]: an error that it denies ends the
// subscription for good, so all that pass are tried again. To acknowledge twice, or to begin
// the worker again, does no harm.
func (*subscription) IsRetryable(err error) bool {
	return server.Retryable(err) || server.ConnectionLost(err) || server.ReadOnly(err) || server.Busy(err)
}

// As implements [driver.Subscription]: a **notify.DB gets the database.
func (s *subscription) As(i any) bool { return asDB(s.db, i) }

// ErrorAs implements [driver.Subscription], as errors.As.
func (*subscription) ErrorAs(err error, i any) bool { return errors.As(err, i) }

// ErrorCode implements [driver.Subscription].
func (*subscription) ErrorCode(err error) gcerrors.ErrorCode { return code(err) }

// Close implements [driver.Subscription]: what was not answered comes to another.
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
