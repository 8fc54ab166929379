package bench

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/producer"
)

var quiet = slog.New(slog.DiscardHandler)

const (
	batch = 1000
	times = 3 // every rate is measured as many times, after one that warms up
)

// turns runs a turn repeatedly. The first one warms up and is not kept.
func turns(turn func(i int, kept bool) error) error {
	for i := range 1 + times {
		if err := turn(i, i > 0); err != nil {
			return err
		}
	}
	return nil
}

// throughput measures how many rows a second are published and read.
func throughput(ctx context.Context, b *bench) error {
	p, err := producer.New(b.db, b.topic, producer.Options{Logger: quiet})
	if err != nil {
		return err
	}
	b.atEnd(p.Close)
	messages := make([]producer.Message, batch)
	rows := make([]any, batch)
	for i := range messages {
		messages[i].Payload = []byte("0123456789abcdef0123456789abcdef")
		rows[i] = messages[i].Payload
	}
	insert := "INSERT INTO " + ident.Quote(b.topic) + " (headers, payload) VALUES " + strings.TrimSuffix(strings.Repeat("(NULL, ?), ", batch), ", ")
	one := "INSERT INTO " + ident.Quote(b.topic) + " (headers, payload) VALUES (NULL, ?)"
	pool := b.db.Pool()
	batches, ones := max(1, b.Rows/batch/(1+times)), max(1, b.Rows/100/(1+times))
	steps := []struct {
		name, floor string
		rows        int
		run         func() error
	}{
		{"bare INSERTs of 1000", "", batches * batch, repeat(batches, func() error { _, err := pool.ExecContext(ctx, insert, rows...); return err })},
		{"publish 1000 at once", "bare INSERTs of 1000", batches * batch, repeat(batches, func() error { _, err := p.Publish(ctx, messages...); return err })},
		{"bare INSERTs", "", ones, repeat(ones, func() error { _, err := pool.ExecContext(ctx, one, rows[0]); return err })},
		{"publish one by one", "bare INSERTs", ones, repeat(ones, func() error { _, err := p.Publish(ctx, messages[0]); return err })},
	}
	rates := make([][]float64, len(steps)+2)
	all := (1 + times) * len(rates)
	err = turns(func(i int, kept bool) error {
		for j, step := range steps {
			begun := time.Now()
			if err := step.run(); err != nil {
				return err
			}
			if kept {
				rates[j] = append(rates[j], float64(step.rows)/time.Since(begun).Seconds())
			}
			b.Progress(b.suite, i*len(steps)+j+1, all)
		}
		return nil
	})
	if err != nil {
		return err
	}
	reads := []func(context.Context) (int, error){b.scan, b.consume}
	err = turns(func(i int, kept bool) error {
		for j, read := range reads {
			begun := time.Now()
			n, err := read(ctx)
			if err != nil {
				return err
			}
			if kept {
				rates[len(steps)+j] = append(rates[len(steps)+j], float64(n)/time.Since(begun).Seconds())
			}
			b.Progress(b.suite, (1+times)*len(steps)+i*len(reads)+j+1, all)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for j, step := range steps {
		b.add(step.name, "rows/s", rates[j], step.floor)
	}
	b.add("a bare loop over the backlog", "rows/s", rates[len(steps)], "")
	b.add("consume the backlog", "rows/s", rates[len(steps)+1], "a bare loop over the backlog")
	return nil
}

func repeat(n int, f func() error) func() error {
	return func() error {
		for range n {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	}
}

// scan reads all rows in pages.
func (b *bench) scan(ctx context.Context) (n int, err error) {
	query := "SELECT id, created_at, headers, payload FROM " + ident.Quote(b.topic) + " WHERE id > ? ORDER BY id LIMIT 1000"
	id := uint64(0)
	page := func() (read int, err error) {
		rows, err := b.db.Pool().QueryContext(ctx, query, id)
		if err != nil {
			return 0, err
		}
		defer func() { _ = rows.Close() }()
		for ; rows.Next(); read++ {
			var created string
			var headers, payload []byte
			if err := rows.Scan(&id, &created, &headers, &payload); err != nil {
				return read, err
			}
		}
		return read, rows.Err()
	}
	for {
		read, err := page()
		n += read
		if err != nil || read == 0 {
			return n, err
		}
	}
}

// consume reads all rows with a handler for each.
func (b *bench) consume(ctx context.Context) (n int, err error) {
	c, err := consumer.New(b.db, b.topic, consumer.Options{From: "beginning", StopAtEnd: true, Logger: quiet})
	if err != nil {
		return 0, err
	}
	err = c.Run(ctx, consumer.Each(func(context.Context, consumer.Message) error {
		n++
		return nil
	}))
	return n, err
}
