package bench

import (
	"context"
	"errors"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/producer"
)

const (
	trip     = "a round trip"
	commit   = "a bare INSERT"
	handOver = "a lock's hand-over"
)

// latency measures the time of a message to the handler in another process.
func latency(ctx context.Context, b *bench) error {
	if err := b.trigger(ctx); err != nil {
		return err
	}
	db, err := b.process()
	if err != nil {
		return err
	}
	p, err := producer.New(db, b.topic, producer.Options{Logger: quiet})
	if err != nil {
		return err
	}
	b.atEnd(p.Close)
	floors, err := b.floors(ctx)
	if err != nil {
		return err
	}
	handled, end, err := b.listen(ctx, consumer.Options{From: "beginning"})
	if err != nil {
		return err
	}
	b.atEnd(end)
	var floor [3][]float64
	var published, committed []float64
	err = b.rounds(ctx, func(kept bool) error {
		for i, measure := range []func(context.Context) (time.Duration, error){floors.trip, floors.handOver, floors.commit} {
			took, err := measure(ctx)
			if err != nil {
				return err
			}
			if kept {
				floor[i] = append(floor[i], ms(took))
			}
		}
		if _, err := receive(ctx, handled); err != nil { // the row of the bare INSERT
			return err
		}
		rest(ctx)
		begun := time.Now()
		if _, err := p.Publish(ctx, producer.Message{Payload: []byte("x")}); err != nil {
			return err
		}
		done := time.Now()
		at, err := receive(ctx, handled)
		if err != nil {
			return err
		}
		if kept {
			published = append(published, ms(at.Sub(begun)))
			committed = append(committed, ms(at.Sub(done)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.add(trip, "ms", floor[0], "")
	b.add(handOver, "ms", floor[1], "")
	b.add(commit, "ms", floor[2], "")
	b.add("commit to handler", "ms", committed, handOver)
	b.add("publish to handler", "ms", published, commit)
	return nil
}

var errNothingCame = errors.New("a message was not handled within 30 s")

func receive(ctx context.Context, handled <-chan time.Time) (time.Time, error) {
	late := time.NewTimer(30 * time.Second)
	defer late.Stop()
	select {
	case at := <-handled:
		return at, nil
	case <-late.C:
		return time.Time{}, errNothingCame
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}

// listen runs a consumer in a process of its own, until end is called. handled gets the time of every call of its handler.
func (b *bench) listen(ctx context.Context, options consumer.Options) (handled <-chan time.Time, end func() error, err error) {
	db, err := b.process()
	if err != nil {
		return nil, nil, err
	}
	options.Logger = quiet
	c, err := consumer.New(db, b.topic, options)
	if err != nil {
		return nil, nil, err
	}
	times := make(chan time.Time, 16)
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(running, consumer.Each(func(context.Context, consumer.Message) error {
			select {
			case times <- time.Now():
			case <-running.Done():
			}
			return nil
		}))
	}()
	return times, func() error {
		cancel()
		return <-ended
	}, nil
}
