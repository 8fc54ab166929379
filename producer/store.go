package producer

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"
)

// limits is what matters of a session's settings.
type limits struct {
	packet     int    // max_allowed_packet, in bytes
	step       uint64 // from one id to the next
	autocommit bool
}

// ask reads the limits of tx's session.
func (p *Producer) ask(ctx context.Context, tx Tx) (*limits, error) {
	var l limits
	row := tx.QueryRowContext(ctx, "SELECT @@max_allowed_packet, @@auto_increment_increment, @@autocommit")
	if err := row.Scan(&l.packet, &l.step, &l.autocommit); err != nil {
		return nil, fmt.Errorf("read max_allowed_packet: %w", err)
	}
	p.known.Store(&l)
	return &l, nil
}

// plan splits the rows into statements for tx's session.
func (p *Producer) plan(ctx context.Context, tx Tx, rows []row) (*limits, []statement, error) {
	l := p.known.Load()
	// The step is a setting of the session, and a Galera cluster changes it with its
	// size, so it is asked for whenever it matters; the rest is asked for once.
	if l == nil {
		var err error
		if l, err = p.ask(ctx, tx); err != nil {
			return nil, nil, err
		}
	}
	if err := fit(rows, l.packet); err != nil {
		return nil, nil, err
	}
	return l, split(p.into, rows, p.batch, l.packet), nil
}

// commit stores the rows, all or none, over a connection that is in no transaction.
func (p *Producer) commit(ctx context.Context, conn *sql.Conn, rows []row) (ids []uint64, err error) {
	l, statements, err := p.plan(ctx, conn, rows)
	if err != nil {
		return nil, err
	}
	if len(statements) == 1 && l.autocommit {
		ids, err = p.insert(ctx, conn, statements, l.step)
		return ids, p.doubt(err)
	}
	if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	if ids, err = p.insert(ctx, conn, statements, l.step); err != nil {
		rollback(ctx, conn)
		return nil, err
	}
	// A statement rather than sql.Tx.Commit, which would not heed ctx.
	if _, err := conn.ExecContext(ctx, "COMMIT"); err != nil {
		rollback(ctx, conn)
		return nil, p.doubt(fmt.Errorf("commit: %w", err))
	}
	return ids, nil
}

// rollbackPatience is how long a connection may take to roll back before it is
// thrown away, which rolls back too.
const rollbackPatience = 5 * time.Second

// rollback leaves conn in no transaction. A ctx that has ended is often why.
func rollback(ctx context.Context, conn *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackPatience)
	defer cancel()
	if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // or its next user would be in the transaction
	}
}

// insert runs the statements and returns the ids of their rows.
//
// A statement's first id is its LAST_INSERT_ID. The others follow by the session's
// auto_increment_increment: an INSERT whose number of rows is known beforehand (a
// "simple insert" in the manual's words) gets all its ids at once, in each
// innodb_autoinc_lock_mode, whoever inserts at the same time.
func (p *Producer) insert(ctx context.Context, tx Tx, statements []statement, step uint64) ([]uint64, error) {
	var ids []uint64
	for _, s := range statements {
		first, err := s.exec(ctx, tx, p.into)
		if err != nil {
			return nil, fmt.Errorf("insert: %w", err)
		}
		for i := range s.rows {
			ids = append(ids, first+uint64(i)*step)
		}
	}
	return ids, nil
}

// exec runs the statement and returns its first id.
func (s statement) exec(ctx context.Context, tx Tx, into string) (uint64, error) {
	query, args := s.sql(into)
	exec := func() (sql.Result, error) { return tx.ExecContext(ctx, query, args...) }
	if s.prepared {
		stmt, err := tx.PrepareContext(ctx, query)
		if err != nil {
			return 0, err
		}
		defer func() { _ = stmt.Close() }()
		exec = func() (sql.Result, error) { return stmt.ExecContext(ctx, args...) }
	}
	result, err := exec()
	if err != nil {
		return 0, err
	}
	first, err := result.LastInsertId()
	if err != nil {
		return 0, err
	}
	if first == 0 {
		return 0, ErrNoID
	}
	return uint64(first), nil // the driver made a signed number of an unsigned one
}
