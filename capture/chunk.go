package capture

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// The ids of one row's messages are in the order in which the row changed. A writer locks its row before its trigger gives the
// message an id, and keeps the lock until it commits. A chunk also locks its rows first, then gets the ids, and keeps the locks
// until it commits. So a change that is newer than the row in the chunk has a larger id, and an older change is part of the row
// in the chunk.
//
// Writing chunks between the changes, without a lock on the table, is the idea of DBLog (Andreakis and Papapanagiotou, 2020). DBLog
// reads the changes from the server's log, and has to mark each chunk's position in the log. Here the row locks give the order.

// rowAlias is the table's alias in the statements that read a chunk.
const rowAlias = "source"

// layout describes how a chunk reads its rows, and where it writes them.
type layout struct {
	name    string // the table
	from    string // the FROM clause, with alias and index
	topic   *table.Table
	columns []table.Column
	key     []table.Column
	keyText string // the key's columns, as JSON for the state
	since   string // distinguishes this capture from earlier ones of the same table
}

// position is a row of mqnotify_snapshot: how far a snapshot is.
type position struct {
	Topic      string           `db:"topic"`
	Capture    string           `db:"capture"`
	KeyColumns string           `db:"key_columns"`
	From       uint64           `db:"first_id"`
	After      sql.Null[string] `db:"after_key"`
	Last       string           `db:"last_key"`
	Rows       uint64           `db:"row_count"`
	Finished   bool             `db:"finished"`
}

// write writes the next chunk, or begins the snapshot, in the open transaction of conn.
func (s *snapshot) write(ctx context.Context, conn *sqlx.Conn) (now Progress, err error) {
	// The SELECT's metadata lock keeps the table's columns and triggers unchanged until the end of the transaction.
	if _, err := conn.ExecContext(ctx, "SELECT 1 FROM "+ident.Quote(s.table)+" LIMIT 0"); err != nil {
		return now, fmt.Errorf("capture: read %s: %w", ident.Quote(s.table), err)
	}
	l, err := s.layout(ctx, conn)
	if err != nil {
		return now, err
	}
	var at position
	err = conn.GetContext(ctx, &at, `SELECT topic, capture, key_columns, first_id, after_key, last_key, row_count, finished_at IS NOT NULL AS finished
		FROM `+schema.SnapshotTable+` WHERE table_name = ? FOR UPDATE`, s.table)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return s.begin(ctx, conn, l)
	case server.Is(err, server.ErrNoSuchTable):
		return now, fmt.Errorf("capture: %w: %w", notify.ErrNoState, err)
	case err != nil:
		return now, fmt.Errorf("capture: read the snapshot's position: %w", err)
	case !s.begun && (at.Finished || s.options.Restart), at.Capture != l.since, at.KeyColumns != l.keyText, at.Topic != l.topic.Name:
		return s.begin(ctx, conn, l)
	}
	now = Progress{Table: s.table, Topic: at.Topic, From: at.From, Rows: at.Rows, Done: at.Finished}
	if at.Finished {
		return now, nil
	}
	chunk, err := l.read(ctx, conn, at, s.limit, !s.session.Capabilities().MariaDB)
	if err != nil {
		return now, err
	}
	if err := s.publish(ctx, conn, at.Topic, chunk.messages); err != nil {
		return now, err
	}
	now.Rows, now.Done = now.Rows+uint64(len(chunk.messages)), chunk.ended
	s.limit = min(2*max(1, len(chunk.messages)), s.most)
	return now, s.store(ctx, conn, chunk.after, now)
}

// layout reads the layout from the table and its capture triggers.
func (s *snapshot) layout(ctx context.Context, conn *sqlx.Conn) (*layout, error) {
	t, err := table.Describe(ctx, conn, s.db.Name(), s.table)
	if err != nil {
		return nil, err
	}
	all, err := triggers(ctx, conn, s.db.Name(), t.Name)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(s standing) bool { return s.made == nil })
	if len(all) == 0 {
		return nil, fmt.Errorf("capture: %s: %w: run mqnotify capture install %s, or, if the table was swapped, mqnotify capture repair %s",
			t, ErrNotCaptured, t.Name, t.Name)
	}
	made, since := all[0].made, []string{}
	for _, trigger := range all {
		if trigger.made.Table != t.Name {
			return nil, fmt.Errorf("capture: %s: %w under this name, but as %s: run mqnotify capture repair %s", t, ErrNotCaptured, trigger.made.Table, t.Name)
		}
		if trigger.made.Topic != made.Topic {
			return nil, fmt.Errorf("capture: %w: changes of %s go into several topics, %s and %s: a snapshot needs a capture with one topic", notify.ErrOptions, t,
				ident.Quote(made.Topic), ident.Quote(trigger.made.Topic))
		}
		if !slices.Contains(since, trigger.made.Since) {
			since = append(since, trigger.made.Since)
		}
	}
	l := &layout{name: t.Name, since: strings.Join(since, " ")}
	if l.columns, l.key, err = snapshotColumns(t, *made); err != nil {
		return nil, err
	}
	var key []column
	for _, c := range l.key {
		key = append(key, column{c.Name, typeOf(c)})
	}
	text, err := json.Marshal(key)
	if err != nil {
		return nil, fmt.Errorf("capture: encode the key of %s: %w", t, err)
	}
	l.keyText = string(text)
	l.from = " FROM " + ident.Quote(t.Name) + " AS " + rowAlias + " FORCE INDEX (PRIMARY)"
	l.topic, err = table.Describe(ctx, conn, s.db.Name(), made.Topic)
	return l, err
}

// snapshotColumns returns the columns that the triggers write, with their current types, and the key's columns.
func snapshotColumns(t *table.Table, made definition) (columns, key []table.Column, err error) {
	names := t.PrimaryKey()
	switch {
	case len(names) == 0:
		return nil, nil, fmt.Errorf("capture: %w: a snapshot of %s needs a primary key of whole columns", notify.ErrOptions, t)
	case t.Engine != "InnoDB":
		return nil, nil, fmt.Errorf("capture: %w: a snapshot of %s needs row locks, which %s does not have: ALTER TABLE %s ENGINE=InnoDB",
			notify.ErrOptions, t, t.Engine, ident.Quote(t.Name))
	case !slices.EqualFunc(names, made.Key, strings.EqualFold):
		return nil, nil, fmt.Errorf("capture: the primary key of %s was changed: run mqnotify capture repair %s", t, t.Name)
	}
	if key, err = chosen(t, names); err != nil {
		return nil, nil, err
	}
	for _, c := range made.captured() {
		now, err := t.Column(c.Name)
		if err != nil {
			return nil, nil, fmt.Errorf("capture: writes to %s fail: run mqnotify capture repair %s: %w", t, t.Name, err)
		}
		columns = append(columns, now)
	}
	return columns, key, nil
}

// begin stores the snapshot's first id and the last key of its chunks.
//
// It reads the first id before the last key. Every row must be in a chunk, or have a message with the first id or a larger one;
// otherwise the copy lacks the row. The locking read of the table's last row waits for transactions that have inserted rows at the
// end, whose messages may have smaller ids. The messages of rows that are inserted later have larger ids.
func (s *snapshot) begin(ctx context.Context, conn *sqlx.Conn, l *layout) (now Progress, err error) {
	now = Progress{Table: s.table, Topic: l.topic.Name}
	from, known, err := table.NextAutoIncrement(ctx, conn.Conn, l.topic)
	if err != nil {
		return now, err
	}
	if !known {
		return now, fmt.Errorf("capture: %s: %w: it has no AUTO_INCREMENT column", l.topic, notify.ErrNotTopic)
	}
	now.From = from
	row := conn.QueryRowxContext(ctx, "SELECT "+strings.Join(l.positions(), ", ")+l.from+l.orderBy(" DESC")+" LIMIT 1 LOCK IN SHARE MODE")
	last, err := scanTexts(row, len(l.key))
	if now.Done = errors.Is(err, sql.ErrNoRows); err != nil && !now.Done {
		return now, fmt.Errorf("capture: read the last row of %s: %w", ident.Quote(s.table), err)
	}
	text, err := json.Marshal(last)
	if err != nil {
		return now, fmt.Errorf("capture: encode the last key of %s: %w", ident.Quote(s.table), err)
	}
	_, err = conn.ExecContext(ctx, "INSERT INTO "+schema.SnapshotTable+` (table_name, topic, capture, key_columns, first_id, last_key, finished_at)
		VALUES (?, ?, ?, ?, ?, ?, IF(?, UTC_TIMESTAMP(6), NULL))
		ON DUPLICATE KEY UPDATE topic = VALUES(topic), capture = VALUES(capture), key_columns = VALUES(key_columns), first_id = VALUES(first_id),
			after_key = NULL, last_key = VALUES(last_key), row_count = 0, started_at = NOW(6), finished_at = VALUES(finished_at)`,
		s.table, now.Topic, l.since, l.keyText, now.From, string(text), now.Done)
	if err != nil {
		return now, fmt.Errorf("capture: store the snapshot's beginning: %w", err)
	}
	return now, nil
}

// publish inserts the messages of a chunk. Each INSERT has at most 1000 rows, whose number the server knows beforehand, so that it
// locks the topic's AUTO_INCREMENT counter no longer than a writer does.
func (s *snapshot) publish(ctx context.Context, conn *sqlx.Conn, topic string, messages []producer.Message) (err error) {
	if s.publisher == nil || s.progress.Topic != topic {
		if s.publisher != nil {
			_ = s.publisher.Close()
		}
		if s.publisher, err = producer.New(s.db, topic, producer.Options{Logger: s.options.Logger}); err != nil {
			return fmt.Errorf("capture: %w", err)
		}
	}
	_, err = s.publisher.PublishTx(ctx, conn, messages...)
	return err
}

// store stores the snapshot's position.
func (s *snapshot) store(ctx context.Context, conn *sqlx.Conn, after []string, now Progress) error {
	if len(after) == 0 { // the remaining rows were deleted
		_, err := conn.ExecContext(ctx, "UPDATE "+schema.SnapshotTable+" SET finished_at = UTC_TIMESTAMP(6) WHERE table_name = ?", s.table)
		return err
	}
	text, err := json.Marshal(after)
	if err == nil {
		_, err = conn.ExecContext(ctx, "UPDATE "+schema.SnapshotTable+" SET after_key = ?, row_count = ?, finished_at = IF(?, UTC_TIMESTAMP(6), NULL) WHERE table_name = ?",
			string(text), now.Rows, now.Done, s.table)
	}
	if err != nil {
		return fmt.Errorf("capture: store the snapshot's position: %w", err)
	}
	return nil
}

// positions returns the SQL expressions of the key's columns as texts.
func (l *layout) positions() (expressions []string) {
	for _, c := range l.key {
		expressions = append(expressions, c.PositionExpression(rowAlias))
	}
	return expressions
}

// orderBy returns the ORDER BY clause of the key, with a direction for each column.
func (l *layout) orderBy(direction string) string {
	var columns []string
	for _, c := range l.key {
		columns = append(columns, rowAlias+"."+ident.Quote(c.Name)+direction)
	}
	return " ORDER BY " + strings.Join(columns, ", ")
}

// scanTexts scans a row into before and then into count texts, which it returns.
func scanTexts(row interface{ Scan(into ...any) error }, count int, before ...any) ([]string, error) {
	texts := make([]string, count)
	for i := range texts {
		before = append(before, &texts[i])
	}
	return texts, row.Scan(before...)
}

// chunk has the messages of some rows.
type chunk struct {
	messages []producer.Message
	after    []string // the last row's key
	ended    bool     // no row is left
}

// read locks the next rows and makes messages of them. If limit is 1 it waits for the row's lock. Otherwise it returns errLocked if
// another transaction has locked one of the rows.
func (l *layout) read(ctx context.Context, conn *sqlx.Conn, at position, limit int, forShare bool) (c chunk, err error) {
	where, args, err := l.between(at)
	if err != nil {
		return c, err
	}
	lock := " LOCK IN SHARE MODE"
	if limit > 1 {
		lock += " NOWAIT"
		if forShare {
			lock = " FOR SHARE NOWAIT" // MySQL's form
		}
	}
	selected := append([]string{table.KeyExpression(l.key, rowAlias), table.JSONExpression(l.columns, rowAlias)}, l.positions()...)
	rows, err := conn.QueryContext(ctx, "SELECT "+strings.Join(selected, ", ")+l.from+where+l.orderBy("")+
		fmt.Sprintf(" LIMIT %d", limit)+lock, args...)
	if err == nil {
		defer func() { _ = rows.Close() }()
		err = c.scan(rows, l, limit)
	}
	if limit > 1 && server.Is(err, server.ErrLockNoWait, server.ErrLockWaitTimeout) {
		err = fmt.Errorf("%w: %w", errLocked, err)
	}
	if err != nil {
		return c, fmt.Errorf("capture: read rows: %w", err)
	}
	return c, nil
}

// between returns the WHERE clause of the rows that are left.
func (l *layout) between(at position) (where string, args []any, err error) {
	var after, last []string
	if err := json.Unmarshal([]byte(at.Last), &last); err != nil {
		return "", nil, fmt.Errorf("capture: read the last key: %w", err)
	}
	where, args, err = table.UpTo(l.key, rowAlias, last)
	if err != nil || !at.After.Valid {
		return " WHERE " + where, args, err
	}
	if err := json.Unmarshal([]byte(at.After.V), &after); err != nil {
		return "", nil, fmt.Errorf("capture: read the last chunk's key: %w", err)
	}
	condition, more, err := table.After(l.key, rowAlias, after)
	return " WHERE " + where + " AND " + condition, append(args, more...), err
}

// scan reads rows until the messages have muchText bytes.
func (c *chunk) scan(rows *sql.Rows, l *layout, limit int) error {
	begin, err := json.Marshal(l.name)
	if err != nil {
		return err
	}
	size := 0
	for size < muchText && rows.Next() {
		var key, row []byte
		after, err := scanTexts(rows, len(l.key), &key, &row)
		if err != nil {
			return err
		}
		var text string
		if row != nil && key != nil {
			err = json.Unmarshal(key, &text)
		}
		if row == nil || key == nil || err != nil {
			return fmt.Errorf("the row after the key %q, as JSON: %w", c.after, errors.Join(err, &notify.TooLargeError{What: "row"}))
		}
		payload := make([]byte, 0, len(row)+100)
		payload = append(payload, `{"op":"read","table":`...)
		payload = append(append(payload, begin...), `,"old":null,"new":`...)
		payload = append(append(payload, row...), '}')
		c.messages = append(c.messages, producer.Message{Headers: map[string]string{"op": opRead, "table": l.name, "key": text}, Payload: payload})
		c.after = after
		size += len(payload)
		for i, k := range l.key {
			if k.DataType == "uuid" && !ordered(after[i]) {
				return fmt.Errorf("%w: %s of the key %s is no UUID of RFC 9562, and MariaDB does not order such values: change the column to BINARY(16)",
					notify.ErrOptions, after[i], ident.Quote(k.Name))
			}
		}
	}
	c.ended = size < muchText && len(c.messages) < limit
	return rows.Err()
}

// ordered reports whether MariaDB's type UUID orders a value. It orders the variant that RFC 9562 defines, and the nil and max
// UUIDs. Comparisons of other values contradict each other (a < b < c < a), so the snapshot would miss rows.
func ordered(uuid string) bool {
	return len(uuid) == 36 && strings.ContainsRune("89ab", rune(uuid[19])) || strings.Trim(uuid, "0-") == "" || strings.Trim(uuid, "f-") == ""
}
