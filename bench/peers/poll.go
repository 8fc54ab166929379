package main

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
)

// remembered has the offsets of groups in memory. A real program would have to store them.
type remembered struct {
	mu   sync.Mutex
	last map[string]uint64
}

func (r *remembered) get(group string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[group]
}

func (r *remembered) set(group string, last uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[string]uint64{}
	}
	r.last[group] = last
}

// polling is the usual polling loop: it reads the rows above the last id, and waits.
type polling struct {
	publisher, consumer *sql.DB
	each                time.Duration
	offsets             remembered
}

func openPolling(publisher, consumer *mysql.Config, each time.Duration) (topic, error) {
	p := &polling{each: each}
	var err error
	if p.publisher, err = pool(publisher); err != nil {
		return nil, err
	}
	p.consumer, err = pool(consumer)
	return p, err
}

const polledTable = "CREATE TABLE orders (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY," +
	" created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), headers JSON, payload LONGBLOB NOT NULL) ENGINE=InnoDB"

func (p *polling) Publish(ctx context.Context, payloads ...[]byte) error {
	args := make([]any, len(payloads))
	for i := range payloads {
		args[i] = payloads[i]
	}
	_, err := p.publisher.ExecContext(ctx, "INSERT INTO orders (payload) VALUES "+strings.TrimSuffix(strings.Repeat("(?), ", len(args)), ", "), args...)
	return err
}

func (p *polling) Begin(ctx context.Context, payload []byte) (func() error, error) {
	tx, err := p.publisher.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO orders (payload) VALUES (?)", payload)
	return tx.Commit, err
}

func (p *polling) Consume(ctx context.Context, group string, handler func([]byte)) error {
	for ctx.Err() == nil {
		n, err := p.page(ctx, group, handler)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if n == 0 {
			pause(ctx, p.each)
		}
	}
	return nil
}

func (p *polling) page(ctx context.Context, group string, handler func([]byte)) (n int, err error) {
	rows, err := p.consumer.QueryContext(ctx, "SELECT id, created_at, headers, payload FROM orders WHERE id > ? ORDER BY id LIMIT 1000", p.offsets.get(group))
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	var id uint64
	var created string
	var headers, payload []byte
	for ; rows.Next(); n++ {
		if err := rows.Scan(&id, &created, &headers, &payload); err != nil {
			return n, err
		}
		handler(payload)
		p.offsets.set(group, id)
	}
	return n, rows.Err()
}

func (p *polling) Close() error {
	_ = p.consumer.Close()
	return p.publisher.Close()
}

// pause waits, and no longer than the context.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// pool is of connections over which a statement is one round trip.
func pool(config *mysql.Config) (*sql.DB, error) {
	config = config.Clone()
	config.InterpolateParams = true
	return connect(config)
}

func connect(config *mysql.Config) (*sql.DB, error) {
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(16)
	return db, nil
}
