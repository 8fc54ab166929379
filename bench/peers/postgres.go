package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// postgres is LISTEN and NOTIFY. The notification is a hint to read the rows above the last id, or
// brings the message itself.
type postgres struct {
	publisher *pgxpool.Pool
	consumer  string // its URL
	brings    bool
	offsets   remembered
}

func postgresTables(brings bool) []string {
	statements := []string{
		"CREATE EXTENSION pg_stat_statements",
		"CREATE TABLE orders (id bigserial PRIMARY KEY, created_at timestamptz NOT NULL DEFAULT now(), headers jsonb, payload bytea NOT NULL)",
		"GRANT INSERT ON orders TO publisher", "GRANT USAGE ON SEQUENCE orders_id_seq TO publisher",
	}
	if !brings {
		statements = append(statements, "GRANT SELECT ON orders TO consumer")
	}
	return statements
}

func openPostgres(ctx context.Context, publisher, consumer string, brings bool) (topic, error) {
	pool, err := pgxpool.New(ctx, publisher)
	if err != nil {
		return nil, err
	}
	return &postgres{publisher: pool, consumer: consumer, brings: brings}, nil
}

// insert is the statement that publishes, and notifies at its commit.
func (p *postgres) insert() string {
	told := "SELECT pg_notify('orders', '')"
	if p.brings {
		told = "SELECT pg_notify('orders', convert_from(payload, 'UTF8')) FROM unnest($1::bytea[]) AS payload"
	}
	return "WITH rows AS (INSERT INTO orders (payload) SELECT unnest($1::bytea[])) " + told
}

func (p *postgres) Publish(ctx context.Context, payloads ...[]byte) error {
	_, err := p.publisher.Exec(ctx, p.insert(), payloads)
	return err
}

func (p *postgres) Begin(ctx context.Context, payload []byte) (func() error, error) {
	tx, err := p.publisher.Begin(ctx)
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, p.insert(), [][]byte{payload})
	return func() error { return tx.Commit(ctx) }, err
}

func (p *postgres) Consume(ctx context.Context, group string, handler func([]byte)) error {
	if err := p.listen(ctx, group, handler); ctx.Err() == nil {
		return err
	}
	return nil // the end of the context cuts the connection off
}

func (p *postgres) listen(ctx context.Context, group string, handler func([]byte)) error {
	conn, err := pgx.Connect(ctx, p.consumer)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "LISTEN orders"); err != nil {
		return err
	}
	for {
		for n := 1; !p.brings && n > 0; {
			if n, err = p.page(ctx, conn, group, handler); err != nil {
				return err
			}
		}
		note, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if p.brings {
			handler([]byte(note.Payload))
		}
	}
}

func (p *postgres) page(ctx context.Context, conn *pgx.Conn, group string, handler func([]byte)) (n int, err error) {
	rows, err := conn.Query(ctx, "SELECT id, created_at, headers, payload FROM orders WHERE id > $1 ORDER BY id LIMIT 1000", p.offsets.get(group))
	if err != nil {
		return 0, err
	}
	var id uint64
	var created time.Time
	var headers, payload []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &created, &headers, &payload}, func() error {
		handler(payload)
		p.offsets.set(group, id)
		n++
		return nil
	})
	return n, err
}

func (p *postgres) Close() error {
	p.publisher.Close()
	return nil
}

// postgresStatements counts what pg_stat_statements has seen of the publisher and the consumer.
func postgresStatements(root *pgxpool.Pool) func(context.Context) (float64, error) {
	return func(ctx context.Context) (n float64, err error) {
		err = root.QueryRow(ctx, "SELECT COALESCE(sum(calls), 0) FROM pg_stat_statements JOIN pg_roles ON pg_roles.oid = userid"+
			" WHERE rolname IN ('publisher', 'consumer')").Scan(&n)
		return n, err
	}
}
