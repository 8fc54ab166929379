package watermill

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
	"github.com/mqnotify/mqnotify/queue"
)

// delayed is the payload of a task that holds a delayed message.
type delayed struct {
	Topic   string            `json:"topic"`
	Headers map[string]string `json:"headers"`
	Payload []byte            `json:"payload"`
}

func delayedEntry(topic string, m producer.Message, wait time.Duration) (queue.Entry, error) {
	payload, err := json.Marshal(delayed{topic, m.Headers, m.Payload})
	if err != nil {
		return queue.Entry{}, fmt.Errorf("watermill: %w", err)
	}
	return queue.Entry{Payload: payload, Delay: wait, Retries: math.MaxInt32}, nil
}

// delayOf returns how long the message must wait from now on. The metadata has the duration, counted from when it was set, and the end of
// the delay, truncated to whole seconds. A message waits no longer than the duration, nor longer than the end of that second, however
// late it is published; it never waits too short.
func delayOf(m *message.Message) (time.Duration, error) {
	until := m.Metadata.Get(delay.DelayedUntilKey)
	if until == "" {
		return 0, nil
	}
	at, err := time.Parse(time.RFC3339, until)
	if err != nil {
		return 0, fmt.Errorf("watermill: the message's metadata %s: %w", delay.DelayedUntilKey, err)
	}
	left := time.Until(at)
	if duration, err := time.ParseDuration(m.Metadata.Get(delay.DelayedForKey)); err == nil {
		return min(duration, left+time.Second), nil
	}
	return left, nil
}

// deliverAll is deliver until Close: it tries again after an error, because the queue may be made later.
func (s *Subscriber) deliverAll() {
	waits := notify.Exponential(100*time.Millisecond, 30*time.Second)
	for {
		begun := time.Now()
		err := s.deliver(s.ctx)
		if s.ctx.Err() != nil {
			return
		}
		if time.Since(begun) > time.Minute {
			waits.Reset()
		}
		wait := waits.NextBackOff()
		s.logger.Error("delayed messages are not delivered; trying again", err, watermill.LogFields{"queue": s.config.DelayQueue, "wait": wait})
		select {
		case <-time.After(wait):
		case <-s.ctx.Done():
			return
		}
	}
}

// deliver publishes delayed messages to their topics when they are due, each once, until ctx ends.
func (s *Subscriber) deliver(ctx context.Context) error {
	q, err := queue.New(s.db, s.config.DelayQueue, queue.Options{Logger: s.config.Consumer.Logger})
	if err != nil {
		return err
	}
	defer func() { _ = q.Close() }()
	publisher, err := NewPublisher(s.db, PublisherConfig{InitializeSchema: s.config.InitializeSchema}, s.logger)
	if err != nil {
		return err
	}
	defer func() { _ = publisher.Close() }()
	// A delayed message has no limit of retries, and none of lapses.
	return q.Work(ctx, queue.WorkerOptions{Concurrency: 10, Lapses: math.MaxInt32}, func(ctx context.Context, task queue.Task) error {
		var m delayed
		if err := json.Unmarshal(task.Payload, &m); err != nil {
			return fmt.Errorf("%w: %w", notify.ErrDead, err)
		}
		to, err := publisher.producer(m.Topic)
		if err != nil {
			return err
		}
		defer publisher.publishes.Done()
		if err := publisher.tables.ready(ctx, m.Topic); err != nil {
			return err
		}
		return to.Transact(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
			if _, err := to.PublishTx(ctx, tx, producer.Message{Headers: m.Headers, Payload: m.Payload}); err != nil {
				return err
			}
			return queue.FinishTx(ctx, tx, task)
		})
	})
}
