package queue

import (
	"context"
	"database/sql"
	"strings"

	"github.com/jmoiron/sqlx"
)

// packet is a list of statements that go to the server together, and the functions that read their results.
type packet struct {
	text    strings.Builder
	args    []any
	readers []func(rows *sql.Rows) error
}

// add adds a statement. read, if it is not nil, is called with every row that it returns.
func (p *packet) add(read func(rows *sql.Rows) error, statement string, args ...any) {
	if p.text.Len() > 0 {
		p.text.WriteString("; ")
	}
	p.text.WriteString(statement)
	p.args = append(p.args, args...)
	if read != nil {
		p.readers = append(p.readers, read)
	}
}

// send runs the statements, up to the first one that fails.
func (p *packet) send(ctx context.Context, conn *sqlx.Conn) error {
	if len(p.readers) == 0 {
		_, err := p.exec(ctx, conn)
		return err
	}
	rows, err := conn.QueryContext(ctx, p.text.String(), p.args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for i, read := range p.readers {
		if i > 0 && !rows.NextResultSet() {
			break
		}
		for rows.Next() {
			if err := read(rows); err != nil {
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
	}
	for rows.NextResultSet() { // statements that return no rows may fail, too
	}
	return rows.Err()
}

// exec is send for statements that return no rows. It returns how many rows the last of them changed.
func (p *packet) exec(ctx context.Context, conn *sqlx.Conn) (int64, error) {
	result, err := conn.ExecContext(ctx, p.text.String(), p.args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
