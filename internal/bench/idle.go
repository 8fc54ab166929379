package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/producer"
)

const (
	// settling is a little longer than the time until the waits between polls have grown to their longest.
	settling = 5 * time.Second
	// mostLatencies is the maximum number of messages whose latency is measured for one way to wait.
	mostLatencies = 20
)

// way is a way in which a consumer waits.
type way struct {
	name       string
	each       time.Duration // between two polls
	statements float64       // a second, including those of other users
	latencies  []float64
}

// idle measures how many statements a second the server gets from a waiting consumer and a waiting
// producer, by the wake trigger and by polling, and the latency of the next
// message. The floor of the statements is a window before; other users of the server are
// in both. The floor of the latencies is a bare INSERT.
func idle(ctx context.Context, b *bench) error {
	if err := b.trigger(ctx); err != nil {
		return err
	}
	ways := []*way{{name: "by the wake trigger"}}
	for _, each := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
		ways = append(ways, &way{name: fmt.Sprintf("polling each %v", each), each: each})
	}
	floors, err := b.floors(ctx)
	if err != nil {
		return err
	}
	others, err := b.questions(ctx, 0, 1+len(ways))
	if err != nil {
		return err
	}
	var inserts []float64
	for i, way := range ways {
		bare, err := b.wait(ctx, way, floors, func() (err error) {
			way.statements, err = b.questions(ctx, 1+i, 1+len(ways))
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		inserts = append(inserts, bare...)
	}
	b.add("statements of others", "1/s", []float64{others}, "")
	b.add(commit, "ms", inserts, "")
	for _, way := range ways {
		statements := way.statements - others
		b.add("a consumer and a producer that wait, "+way.name, "1/s", []float64{statements}, "")
		b.add("publish to handler, "+way.name, "ms", way.latencies, commit)
		b.figures[len(b.figures)-1].Idle = &statements
	}
	return nil
}

// wait runs a consumer that waits in a way, calls count while it waits, and then measures messages. It
// returns the times of bare INSERTs in between.
func (b *bench) wait(ctx context.Context, way *way, floors *floors, count func() error) (inserts []float64, err error) {
	if _, err := b.db.Pool().ExecContext(ctx, "DELETE FROM "+floors.table); err != nil {
		return nil, err
	}
	db, err := b.process()
	if err != nil {
		return nil, err
	}
	p, err := producer.New(db, b.topic, producer.Options{Logger: quiet})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	options := consumer.Options{From: "beginning"}
	if way.each > 0 {
		options.Mode, options.Poll = "poll", func() backoff.BackOff { return backoff.NewConstantBackOff(way.each) }
	}
	handled, end, err := b.listen(ctx, options)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	publish := func() (time.Duration, error) {
		begun := time.Now()
		if _, err := p.Publish(ctx, producer.Message{Payload: []byte("x")}); err != nil {
			return 0, err
		}
		at, err := receive(ctx, handled)
		return at.Sub(begun), err
	}
	if _, err := publish(); err != nil { // returns when the consumer runs
		return nil, err
	}
	if err := server.Pause(ctx, min(settling, b.Window)); err != nil { // after a row it polls more often
		return nil, err
	}
	if err := count(); err != nil {
		return nil, err
	}
	for range min(b.Rounds, mostLatencies) {
		bare, err := floors.commit(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := receive(ctx, handled); err != nil {
			return nil, err
		}
		// Publish at a random time between two polls.
		if err := server.Pause(ctx, 3*time.Millisecond+rand.N(way.each+1)); err != nil {
			return nil, err
		}
		took, err := publish()
		if err != nil {
			return nil, err
		}
		inserts, way.latencies = append(inserts, ms(bare)), append(way.latencies, ms(took))
	}
	return inserts, nil
}

// questions returns how many statements a second the server gets, without the statements that read the number.
func (b *bench) questions(ctx context.Context, part, parts int) (float64, error) {
	const most = 20
	read := func() (n int64, err error) {
		err = b.db.Pool().QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(new(string), &n)
		return n, err
	}
	first, err := read()
	if err != nil {
		return 0, err
	}
	for i := range most {
		if err := server.Pause(ctx, b.Window/most); err != nil {
			return 0, err
		}
		b.Progress(b.suite, part*most+i+1, parts*most)
	}
	last, err := read()
	return float64(last-first-1) / b.Window.Seconds(), err
}
