package consumer

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// rows reads a table's rows over a session, with the driver's own interface, because a
// row then costs a third less than through database/sql.
type rows struct {
	session  *core.Session
	release  func() // returns the shared session, or closes the session
	table    *table.Table
	keyName  string
	key      string   // quoted
	where    string   // " AND (...)", or empty
	columns  string   // the selected columns, the key first
	names    []string // the names of columns; nil unless they are all columns of the table
	anyKey   bool     // Options.AcceptAnyKey
	messages bool     // the table is a message table
	shares   *shares  // nil unless members share the group
	decode   func(values []driver.Value, page *page) (Message, error)
	next     driver.Stmt // reads the page after an id
	ahead    *ahead      // nil if no row is read ahead
	types    []string    // the types of the columns in the first page
}

// errAltered means that the table has changed since it was described.
var errAltered = errors.New("the table was altered")

// newRows checks the key and the columns, and decides how rows are decoded.
func newRows(session *core.Session, t *table.Table, options Options) (*rows, error) {
	key, err := t.KeyColumn(options.Key)
	if err != nil {
		return nil, err
	}
	if !t.Unique(key.Name) {
		return nil, fmt.Errorf("consumer: column %s of %s has no unique index of its own, so that rows of the same key can't be told apart: add one, or name another column: %w",
			ident.Quote(key.Name), t, table.ErrNoKey)
	}
	if t.IsMessageTable() && key.Name != "id" {
		return nil, fmt.Errorf("consumer: %s is a message table, which is read by its id: leave out the key %s: %w", t, ident.Quote(key.Name), table.ErrNoKey)
	}
	r := &rows{session: session, table: t, keyName: key.Name, key: ident.Quote(key.Name), anyKey: options.AcceptAnyKey}
	if options.Where != "" {
		// Line breaks around the condition keep a comment in it from swallowing what follows.
		r.where = " AND (\n" + options.Where + "\n)"
	}
	if t.IsMessageTable() && len(options.Columns) == 0 {
		r.messages = true
		r.columns = "id, created_at, headers, payload"
		r.decode = func(values []driver.Value, p *page) (Message, error) {
			return message(t.Name, values, p, r.shares)
		}
		return r, nil
	}
	var columns []table.Column
	for _, name := range options.Columns {
		column, err := t.Column(name)
		if err != nil {
			return nil, err
		}
		columns = append(columns, column)
	}
	if len(options.Columns) == 0 {
		for _, column := range t.Columns {
			if !column.Invisible {
				columns = append(columns, column)
			}
		}
	}
	r.columns = r.key
	names := []string{key.Name}
	for _, column := range columns {
		r.columns += ", " + ident.Quote(column.Name)
		names = append(names, column.Name)
	}
	if len(options.Columns) == 0 {
		r.names = names
	}
	// further is the index of the first value that belongs to no column of the message. Some messages may be for another group.
	further, retries := 1+len(columns), t.IsMessageTable() && options.Group != ""
	if retries {
		r.columns += ", headers"
		further++
	}
	encoder, binary := table.NewEncoder(columns), make(map[string]bool)
	for _, c := range columns {
		binary[c.Name] = c.IsBinary()
	}
	var maybeJSON []int
	for i, c := range columns {
		if session.Capabilities().MariaDB && c.MaybeJSON() {
			maybeJSON = append(maybeJSON, i)
		}
	}
	row := make([]any, len(columns))
	var line []byte
	r.decode = func(values []driver.Value, p *page) (Message, error) {
		id, err := toID(values[0])
		if err != nil {
			return Message{}, err
		}
		part, err := r.shares.partOf(id, values[further:])
		if err != nil || part == passed {
			return Message{ID: id, part: part}, err
		}
		for i := range row {
			row[i] = values[i+1]
		}
		for _, i := range maybeJSON {
			value, _ := row[i].([]byte)
			p.doubtful = p.doubtful || json.Valid(value)
		}
		if line, err = encoder.AppendJSON(line[:0], row); err != nil {
			return Message{}, err
		}
		m := Message{ID: id, Topic: t.Name, Payload: p.keep(line), IsRow: true, binary: binary, part: part}
		if text, ok := values[further-1].([]byte); ok && retries {
			m.retryOf = headers(text)[retryHeader]
		}
		return m, nil
	}
	return r, nil
}

// share adds the partition to the columns, and keeps the contents of foreign messages on the server. It does so only for message
// tables, because in other tables an IF would lose a column's type.
func (r *rows) share(s *shares) error {
	part, err := s.expression(r.table, r.key)
	if err != nil {
		return err
	}
	if r.messages && len(s.own) < s.parts {
		mine := part + " IN (" + list(s.own) + ")"
		r.columns = "id, created_at, IF(" + mine + ", headers, NULL), IF(" + mine + ", payload, NULL)"
	}
	r.shares = s
	r.columns += ", " + part
	return nil
}

// all selects all columns as *, which shows a column that is added later. It does so only if * returns the described columns,
// because the account may be allowed to read only some.
func (r *rows) all(ctx context.Context) error {
	if r.names == nil {
		return nil
	}
	var names []string
	columns := r.key + ", " + ident.Quote(r.table.Name) + ".*"
	err := r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		result, err := conn.QueryContext(ctx, "SELECT "+columns+" FROM "+ident.Quote(r.table.Name)+" LIMIT 0")
		if err != nil {
			return err
		}
		defer result.Close()
		if names, err = result.Columns(); err != nil {
			return err
		}
		return result.Err()
	})
	switch {
	case err != nil && !server.NoPrivilege(err):
		return fmt.Errorf("consumer: read the columns of %s: %w", r.table, err)
	case err == nil && slices.Equal(names, r.names):
		r.columns = columns
	default:
		r.names = nil
	}
	return nil
}

// isThere reports whether the table exists.
func (r *rows) isThere(ctx context.Context) bool {
	return r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		_, err := table.Describe(ctx, conn, r.table.Schema, r.table.Name)
		return err
	}) == nil
}

// prepare prepares the statement that reads pages, which also checks the condition.
func (r *rows) prepare(ctx context.Context) error {
	err := r.raw(ctx, func(ctx context.Context, conn driver.ConnPrepareContext) (err error) {
		r.next, err = conn.PrepareContext(ctx, "SELECT "+r.columns+" FROM "+ident.Quote(r.table.Name)+
			" WHERE "+r.key+" > ?"+r.where+" ORDER BY "+r.key+" LIMIT ?")
		return err
	})
	switch {
	case server.Is(err, server.ErrNoSuchTable) && r.isThere(ctx):
		return fmt.Errorf("consumer: %w: Where names a table that does not exist: %w", notify.ErrOptions, err)
	case err != nil:
		return fmt.Errorf("consumer: prepare to read %s: %w", r.table, err)
	case r.next.NumInput() != 2:
		return fmt.Errorf("consumer: %w: Where contains a ?, for which there is no value", notify.ErrOptions)
	}
	return nil
}

// close closes the prepared statement and releases the session. A shared session lives on, so the statement would too. close waits
// at most a second for a busy session.
func (r *rows) close() {
	if r.next != nil && r.session.Err() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = r.raw(ctx, func(context.Context, driver.ConnPrepareContext) error { return r.next.Close() })
	}
	r.release()
}

// after reads at most limit rows with larger ids, in order. With now it reads from the server even if a row was read ahead.
func (r *rows) after(ctx context.Context, id uint64, limit int, now bool) (*page, error) {
	if p := r.ahead.take(id); p != nil && !now {
		return p, nil
	}
	p := &page{messages: make([]Message, 0, limit)}
	err := r.raw(ctx, func(ctx context.Context, _ driver.ConnPrepareContext) error {
		return r.scan(ctx, r.next, []uint64{id, uint64(limit)}, func(values []driver.Value) error {
			return r.add(p, values, limit)
		})
	})
	return p, r.certain(ctx, p, err)
}

// within reads at most limit rows of the spans, in order.
func (r *rows) within(ctx context.Context, spans []position.Span, limit int) (*page, error) {
	ranges := strings.TrimSuffix(strings.Repeat(r.key+" BETWEEN ? AND ? OR ", len(spans)), " OR ")
	query := "SELECT " + r.columns + " FROM " + ident.Quote(r.table.Name) +
		" WHERE (" + ranges + ")" + r.where + " ORDER BY " + r.key + " LIMIT ?"
	args := make([]uint64, 0, 2*len(spans)+1)
	for _, s := range spans {
		args = append(args, s.Lo, s.Hi)
	}
	p := &page{}
	err := r.once(ctx, query, append(args, uint64(limit)), func(values []driver.Value) error {
		return r.add(p, values, limit)
	})
	return p, r.certain(ctx, p, err)
}

// certain returns err, or errAltered if the page is doubtful and a column has become JSON, or is no longer, since the table was
// described.
func (r *rows) certain(ctx context.Context, p *page, err error) error {
	if err != nil || !p.doubtful {
		return err
	}
	return r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		changed, err := r.table.JSONChanged(ctx, conn)
		if err == nil && changed {
			err = errAltered
		}
		return err
	})
}

// add appends a row to the page. It returns errEnough when the page is full.
func (r *rows) add(p *page, values []driver.Value, limit int) error {
	m, err := r.decode(values, p)
	if err != nil {
		return err
	}
	p.messages = append(p.messages, m)
	if p.full = p.bytes >= pageBytes || len(p.messages) == limit; p.full {
		return errEnough
	}
	return nil
}

// ids reads at most limit keys of (after, upTo], in order. where is a condition, or empty.
func (r *rows) ids(ctx context.Context, after, upTo uint64, where string, limit int) (ids []uint64, err error) {
	query := "SELECT " + r.key + " FROM " + ident.Quote(r.table.Name) +
		" WHERE " + r.key + " > ? AND " + r.key + " <= ?" + where + " ORDER BY " + r.key + " LIMIT ?"
	err = r.once(ctx, query, []uint64{after, upTo, uint64(limit)}, func(values []driver.Value) error {
		id, err := toID(values[0])
		ids = append(ids, id)
		return err
	})
	return ids, err
}

// once prepares, runs and closes a statement.
func (r *rows) once(ctx context.Context, query string, args []uint64, each func([]driver.Value) error) error {
	return r.raw(ctx, func(ctx context.Context, conn driver.ConnPrepareContext) error {
		stmt, err := conn.PrepareContext(ctx, query)
		if err != nil {
			return err
		}
		return errors.Join(r.scan(ctx, stmt, args, each), stmt.Close())
	})
}

func (r *rows) raw(ctx context.Context, f func(ctx context.Context, conn driver.ConnPrepareContext) error) error {
	err := r.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		return conn.Raw(func(c any) error { return f(ctx, c.(driver.ConnPrepareContext)) })
	})
	if server.Is(err, server.ErrBadField) && r.types != nil {
		err = fmt.Errorf("%w: %v", errAltered, err) //nolint:errorlint // the column existed before, so the options are not wrong
	}
	return err
}

// scan runs a prepared statement, because the binary protocol preserves every type's value, while the text protocol changes a FLOAT.
func (r *rows) scan(ctx context.Context, stmt driver.Stmt, args []uint64, each func([]driver.Value) error) (err error) {
	named := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
	}
	result, err := stmt.(driver.StmtQueryContext).QueryContext(ctx, named)
	if err != nil {
		return err
	}
	defer func() {
		if closed := result.Close(); err == nil {
			err = closed
		}
	}()
	values := make([]driver.Value, len(result.Columns()))
	if err := r.unaltered(result); err != nil {
		return err
	}
	for enough := false; ; {
		switch err := result.Next(values); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case enough: // read the result to its end here, because Close would do so without the context
			continue
		}
		err := each(values)
		if enough = errors.Is(err, errEnough); err != nil && !enough {
			return err
		}
	}
}

// unaltered returns errAltered if a result's columns or their types have changed. Without this check a number column that became a
// text column would still be encoded as a number.
func (r *rows) unaltered(result driver.Rows) error {
	columns := result.Columns()
	named, ok := result.(driver.RowsColumnTypeDatabaseTypeName)
	if !ok || len(columns) == 1 { // the result has only ids
		return nil
	}
	described := len(columns)
	if r.shares != nil {
		described-- // the partition
	}
	if r.names != nil && !slices.Equal(r.names, columns[:described]) {
		return errAltered
	}
	types := make([]string, len(columns))
	for i := range types {
		types[i] = named.ColumnTypeDatabaseTypeName(i)
	}
	if r.types == nil {
		r.types = types
	}
	if !slices.Equal(r.types, types) {
		return errAltered
	}
	return nil
}
