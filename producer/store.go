package producer

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/dberror"
	"github.com/mqnotify/mqnotify/internal/header"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/notify"
)

// plan is how a session stores rows.
type plan struct {
	statements []statement
	step       uint64 // the difference between the ids of two rows
	autocommit bool
}

func (p *Producer) plan(ctx context.Context, tx notify.Tx, rows []row) (plan, error) {
	caps := p.caps.Load()
	if caps == nil {
		var err error
		if caps, err = server.Discover(ctx, tx); err != nil {
			return plan{}, err
		}
		p.caps.Store(caps)
	}
	if err := fit(rows, caps.MaxAllowedPacket); err != nil {
		return plan{}, err
	}
	step, err := uint64(1), error(nil)
	if len(rows) > 1 {
		step, err = p.step(ctx, tx, caps)
	}
	return plan{split(p.into, rows, p.batch, caps.MaxAllowedPacket), step, caps.Autocommit}, err
}

// step is the auto_increment_increment of a connection.
type step struct {
	conn any // the driver's connection
	size uint64
}

// step reads the auto_increment_increment of tx's session. It keeps the value of the last connection, because a single publisher
// gets the same connection every time.
func (p *Producer) step(ctx context.Context, tx notify.Tx, caps *server.Capabilities) (uint64, error) {
	var now step
	if c, ok := tx.(interface{ Raw(f func(any) error) error }); ok {
		if err := c.Raw(func(conn any) error { now.conn = conn; return nil }); err != nil {
			return 0, fmt.Errorf("connect: %w", err)
		}
		// A Galera cluster changes the increment of every session with its own size.
		if last := p.last.Load(); last != nil && last.conn == now.conn && !caps.Galera {
			return last.size, nil
		}
	}
	row := tx.QueryRowContext(ctx, "SELECT @@auto_increment_increment")
	if err := row.Scan(&now.size); err != nil {
		return 0, fmt.Errorf("read auto_increment_increment: %w", err)
	}
	if now.conn != nil {
		p.last.Store(&now)
	}
	return now.size, nil
}

// commit stores the rows, all or none, over a connection that is in no transaction. packets means that the connection accepts
// several statements in a packet, so that the same packet can also wake the listeners.
func (p *Producer) commit(ctx context.Context, conn *sql.Conn, rows []row, packets bool) (ids []uint64, woken bool, err error) {
	plan, err := p.plan(ctx, conn, rows)
	if err != nil {
		return nil, false, err
	}
	if len(plan.statements) == 1 && plan.autocommit {
		if packets && p.fitsWithCall(plan.statements[0]) {
			ids, woken, err = p.insertAndWake(ctx, conn, plan)
		} else {
			ids, err = p.insert(ctx, conn, plan)
		}
		if err != nil {
			err = p.doubt(err)
		}
		return ids, woken, err
	}
	if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
		return nil, false, fmt.Errorf("begin: %w", err)
	}
	if ids, err = p.insert(ctx, conn, plan); err != nil {
		rollback(ctx, conn)
		return nil, false, err
	}
	// A statement and not sql.Tx.Commit, which waits for 5 s after the end of ctx.
	if _, err := conn.ExecContext(ctx, "COMMIT"); err != nil {
		rollback(ctx, conn)
		return nil, false, p.doubt(fmt.Errorf("commit: %w", err))
	}
	return ids, false, nil
}

// The statements around an INSERT whose packet wakes the listeners. The first clears the id of an earlier INSERT, in case the table
// assigns none. It is a SET, because the engine of the demo has no DO.
const (
	beforeInsert = "SET @mqnotify_id = LAST_INSERT_ID(0); "
	afterInsert  = "; SELECT LAST_INSERT_ID(); CALL " + waiting.WakeRoutine + "(?)"
)

// fitsWithCall reports whether a statement and the call fit into one packet.
func (p *Producer) fitsWithCall(s statement) bool {
	size := len(beforeInsert) + len(p.into) + len(afterInsert) + 2*len(p.topic) + around
	for _, r := range s.rows {
		size += r.escaped()
	}
	caps := p.caps.Load()
	if limit := core.MaxAllowedPacket(p.db); limit > 0 && size > limit {
		return false
	}
	return !s.prepared && caps != nil && size <= caps.MaxAllowedPacket
}

// insertAndWake is insert for an INSERT that commits by itself, with a call that wakes the listeners in the same packet.
func (p *Producer) insertAndWake(ctx context.Context, conn *sql.Conn, plan plan) (ids []uint64, woken bool, err error) {
	s := plan.statements[0]
	query, args := s.sql(p.into)
	// The driver skips to the first statement that returns rows.
	rows, err := conn.QueryContext(ctx, beforeInsert+query+afterInsert, append(args, p.topic)...)
	if server.Is(err, server.ErrQueryInterrupted, server.ErrStatementTime, server.ErrExecutionTime,
		server.ErrServerShutdown, server.ErrConnectionKilled, server.ErrNotPrepared, server.ErrAccountLimit) {
		return nil, false, fmt.Errorf("insert: %v", err) //nolint:errorlint // it may have happened after the commit
	}
	if err != nil {
		return nil, false, fmt.Errorf("insert: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var first uint64
	if rows.Next() {
		err = rows.Scan(&first)
	}
	if err = cmp.Or(err, rows.Err()); err != nil {
		return nil, false, fmt.Errorf("read the id: %v", err) //nolint:errorlint // the rows are stored
	}
	if first == 0 {
		return nil, false, fmt.Errorf("insert: %w", ErrNoID)
	}
	for rows.NextResultSet() {
	}
	return s.ids(first, plan.step), rows.Err() == nil, nil
}

// rollbackPatience is how long a connection may take to roll back. After that it is discarded, which rolls back too.
const rollbackPatience = 5 * time.Second

// rollback ends the transaction of conn. It ignores the end of ctx, which is often the reason for the rollback.
func rollback(ctx context.Context, conn *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackPatience)
	defer cancel()
	if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // discard it: its next user would be in the transaction
	}
}

// insert runs the statements and returns the ids of their rows.
//
// LAST_INSERT_ID is the first id of a statement. The others follow at the session's auto_increment_increment. An INSERT whose
// number of rows is known beforehand (a "simple insert" in the manual) gets all its ids at once, in every
// innodb_autoinc_lock_mode, even if other sessions insert at the same time.
func (p *Producer) insert(ctx context.Context, tx notify.Tx, plan plan) ([]uint64, error) {
	var ids []uint64
	for _, s := range plan.statements {
		first, err := s.exec(ctx, tx, p.into)
		if err != nil {
			return nil, fmt.Errorf("insert: %w", err)
		}
		ids = append(ids, s.ids(first, plan.step)...)
	}
	return ids, nil
}

// ids returns the ids of the statement's rows.
func (s statement) ids(first, step uint64) []uint64 {
	ids := make([]uint64, len(s.rows))
	for i := range ids {
		ids[i] = first + uint64(i)*step
	}
	return ids
}

// exec runs the statement and returns its first id.
func (s statement) exec(ctx context.Context, tx notify.Tx, into string) (uint64, error) {
	query, args := s.sql(into)
	exec := func() (sql.Result, error) { return tx.ExecContext(ctx, query, args...) }
	if s.prepared {
		stmt, err := tx.PrepareContext(ctx, query)
		if err != nil {
			return 0, dberror.NotStored(err)
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
	return uint64(first), nil // the driver converted an unsigned number to a signed one
}

// row is a message in its stored form.
type row struct {
	headers string // JSON; empty for NULL
	payload []byte // not nil
}

// encode checks the messages and returns their rows.
func encode(messages []Message) ([]row, error) {
	rows := make([]row, len(messages))
	for i, m := range messages {
		rows[i].payload = m.Payload
		if m.Payload == nil {
			rows[i].payload = []byte{} // the driver would store nil as NULL
		}
		if len(m.Headers) == 0 {
			continue
		}
		for name, value := range m.Headers {
			if !utf8.ValidString(name) || !utf8.ValidString(value) { // Marshal would replace the bytes without an error
				return nil, fmt.Errorf("message %d of %d: header %q: %w: it is not UTF-8: move it into the payload",
					i+1, len(messages), name, notify.ErrOptions)
			}
			if header.Reserved(name) {
				return nil, fmt.Errorf("message %d of %d: header %q: %w: names that begin with %s are reserved: use another",
					i+1, len(messages), name, notify.ErrOptions, header.Prefix)
			}
		}
		headers, err := json.Marshal(m.Headers)
		if err != nil {
			return nil, fmt.Errorf("message %d of %d: encode the headers: %w", i+1, len(messages), err)
		}
		rows[i].headers = string(headers)
	}
	return rows, nil
}

// around is an upper bound for the bytes that surround the values of one row in a statement (quotes, a character set, parentheses,
// commas), and for the bytes that surround the statement in a packet.
const around = 64

// escaped returns the most bytes that the row takes in a statement: the driver may put a backslash before each of its bytes.
func (r row) escaped() int { return 2*(len(r.headers)+len(r.payload)) + around }

const (
	defaultBatchRows  = 1000
	defaultBatchBytes = 4 << 20
	// The driver prepares a statement whose values it can't write into the text, and a prepared statement takes at most 65,535
	// parameters.
	maxBatchRows = 32_000
)

// batchLimits are the maximum rows and bytes of one statement.
type batchLimits struct{ rows, bytes int }

// newBatchLimits returns the limits of the options, with bytes bounded by the driver's maxAllowedPacket; 0 means that the driver uses
// the server's. The driver would prepare a longer statement, whose parameters might not fit either.
func newBatchLimits(o Options, driver int) (batchLimits, error) {
	limits := batchLimits{o.BatchRows, o.BatchBytes}
	if limits.rows == 0 {
		limits.rows = defaultBatchRows
	}
	if limits.bytes == 0 {
		limits.bytes = defaultBatchBytes
	}
	if limits.rows < 0 || limits.rows > maxBatchRows {
		return limits, fmt.Errorf("%w: BatchRows is %d: it must be 1 to %d, or 0 for %d", notify.ErrOptions, o.BatchRows, maxBatchRows, defaultBatchRows)
	}
	if limits.bytes < 0 {
		return limits, fmt.Errorf("%w: BatchBytes is negative: 0 means 4 MiB", notify.ErrOptions)
	}
	if driver > 0 {
		limits.bytes = min(limits.bytes, driver)
	}
	return limits, nil
}

// statement is one INSERT.
type statement struct {
	rows []row
	// prepared sends the values apart from the statement, unescaped, and in several packets if one can't hold them. This costs
	// three round trips instead of one.
	prepared bool
}

// fit returns an error if a row does not fit into a packet.
func fit(rows []row, packet int) error {
	for i, r := range rows {
		if size := len(r.headers) + len(r.payload) + around; size >= packet { // in a prepared statement
			return &notify.TooLargeError{What: "message", Index: i, Size: size, Limit: packet}
		}
	}
	return nil
}

// split makes statements of the rows, in their order. Each statement fits into a packet even if every byte must be escaped; a row
// that does not is sent prepared.
func split(into string, rows []row, batch batchLimits, packet int) []statement {
	var statements []statement
	room := min(batch.bytes, packet) - around - len(into)
	for start := 0; start < len(rows); {
		end, size := start, 0
		for end < len(rows) && end-start < batch.rows && size+rows[end].escaped() <= room {
			size += rows[end].escaped()
			end++
		}
		if end > start {
			statements = append(statements, statement{rows: rows[start:end]})
			start = end
			continue
		}
		statements = append(statements, statement{rows: rows[start : start+1], prepared: true})
		start++
	}
	return statements
}

// sql returns the statement's text and its values.
func (s statement) sql(into string) (string, []any) {
	var query strings.Builder
	query.Grow(len(into) + len(s.rows)*len("(NULL,?),"))
	query.WriteString(into)
	args := make([]any, 0, 2*len(s.rows))
	for i, r := range s.rows {
		if i > 0 {
			query.WriteByte(',')
		}
		var payload any = r.payload
		if utf8.Valid(r.payload) {
			payload = string(r.payload) // a text, which the server converts for a column of another character set
		}
		if r.headers == "" {
			query.WriteString("(NULL,?)")
			args = append(args, payload)
		} else {
			query.WriteString("(?,?)")
			args = append(args, r.headers, payload) // headers as a string, because servers accept no binary JSON
		}
	}
	return query.String(), args
}
