package consumer

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// errNoLetter means that the dead letter was deleted before the transaction locked it.
var errNoLetter = errors.New("there is no such dead letter")

// previewBytes is how much of a payload DeadLetters reads.
const previewBytes = 4 << 10

// DeadLetter is a message that a group stopped trying.
type DeadLetter struct {
	// ID is the id of the dead letter itself. It stays the same when the message fails again.
	ID uint64
	// Topic is the table's name.
	Topic string
	// Group is the group whose handler failed.
	Group string
	// MessageID is the id of the message in the topic.
	MessageID uint64
	// Headers is nil if there are none.
	Headers map[string]string
	// Payload is the payload, or the row as a JSON object, with which the handler failed: its first 4 KiB, or all of it if
	// DeadFilter.Whole is set.
	Payload []byte
	// Size is the length of the whole payload, in bytes.
	Size uint64
	// Attempts is how many times the handler failed.
	Attempts int
	// Error is the text of the handler's last error, of 8 KiB at most.
	Error string
	// FailedAt is the time of the last failure, by the server's clock, in UTC.
	FailedAt time.Time
	// Retrying is true between RetryDead and the next attempt of the group's consumer.
	Retrying bool
}

// DeadFilter selects dead letters; the zero value selects all.
type DeadFilter struct {
	// IDs are ids of dead letters; nil means all, and an empty slice none. Ids that no dead letter has are ignored.
	IDs []uint64
	// Error is a part of the error's text, in capitals or not; empty means every error.
	Error string
	// After selects the dead letters with larger ids, for pages.
	After uint64
	// Limit is the maximum number, counted from the smallest id. 0 means 100 for DeadLetters, and no limit for
	// RetryDead and DeleteDead.
	Limit int
	// Whole makes DeadLetters read whole payloads of any size.
	Whole bool
}

// where returns the filter as an SQL condition on the dead letters, which have the alias l.
func (f DeadFilter) where(topic, group string) (where string, args []any, err error) {
	if f.Limit < 0 {
		return "", nil, fmt.Errorf("consumer: %w: Limit is negative", notify.ErrOptions)
	}
	where, args = " WHERE l.topic = ? AND l.id > ?", []any{topic, f.After}
	if group != "" {
		where, args = where+" AND l.group_name = ?", append(args, group)
	}
	if f.Error != "" {
		where, args = where+" AND LOCATE(?, l.error) > 0", append(args, f.Error)
	}
	switch {
	case f.IDs == nil:
	case len(f.IDs) == 0:
		where += " AND FALSE"
	default:
		for _, id := range f.IDs {
			args = append(args, id)
		}
		where += " AND l.id IN (?" + strings.Repeat(", ?", len(f.IDs)-1) + ")"
	}
	return where, args, nil
}

// DeadLetters returns the dead letters that the filter selects, in the order of their ids. They are those of the consumer's group, or
// of every group if Options.Group is empty. The consumer need not run. The error is notify.ErrNoTable, notify.ErrNoState,
// notify.ErrOptions or the server's.
func (c *Consumer) DeadLetters(ctx context.Context, f DeadFilter) (all []DeadLetter, err error) {
	t, err := c.table(ctx)
	if err != nil {
		return nil, err
	}
	where, args, err := f.where(t.Name, c.options.Group)
	if err != nil {
		return nil, err
	}
	payload := fmt.Sprintf("LEFT(l.payload, %d)", previewBytes)
	if f.Whole {
		payload = "l.payload"
	}
	rows, err := c.db.Pool().QueryContext(ctx, "SELECT l.id, l.topic, l.group_name, l.message_id, l.headers, "+payload+", LENGTH(l.payload),"+
		" l.attempts, l.error, CAST(UNIX_TIMESTAMP(l.failed_at) * 1000000 AS SIGNED), r.message_id IS NOT NULL FROM "+schema.DeadLetterTable+" AS l"+
		" LEFT JOIN "+schema.RetryTable+" AS r ON r.topic = l.topic AND r.group_name = l.group_name AND r.message_id = l.message_id"+
		where+" ORDER BY l.id LIMIT ?", append(args, cmp.Or(f.Limit, 100))...)
	if err != nil {
		return nil, stateError("read dead letters", err)
	}
	defer rows.Close()
	for rows.Next() {
		var l DeadLetter
		var text []byte
		var failed int64
		err := rows.Scan(&l.ID, &l.Topic, &l.Group, &l.MessageID, &text, &l.Payload, &l.Size, &l.Attempts, &l.Error, &failed, &l.Retrying)
		if err != nil {
			return nil, stateError("read dead letters", err)
		}
		l.Headers, l.FailedAt = headers(text), time.UnixMicro(failed).UTC()
		all = append(all, l)
	}
	if err := rows.Err(); err != nil {
		return nil, stateError("read dead letters", err)
	}
	return all, nil
}

func (c *Consumer) table(ctx context.Context) (*table.Table, error) {
	return table.Describe(ctx, c.db.Pool(), c.db.Name(), c.topic)
}

// RetryDead makes the groups try again the messages of the dead letters that DeadLetters would return, each in a transaction of its
// own. No other group gets them. messages are the ids of the messages, in the order of the dead letters. gone are the ids of dead
// letters whose rows are no longer in the table; these stay as they are. After an error the results contain what was done before;
// the remaining dead letters stay as they were.
//
// A message of a message table is published again for its group alone, whole, with a new id and the header mqnotify-retry, and
// its dead letter is deleted. Further columns have the values of the message's row, which must still be there, except the last one of
// each unique index, which has its default. In any other table the group's consumer reads the current row again, within 5 s
// if it runs. It handles the row at least once, or exactly once in the transaction of EachTx or BatchTx, and deletes the dead
// letter with it. Until then DeadLetter.Retrying is true. If the handler fails again, the dead letter has the new error.
//
// The error is one of those of DeadLetters, or about the table's key.
func (c *Consumer) RetryDead(ctx context.Context, f DeadFilter) (messages, gone []uint64, err error) {
	t, err := c.table(ctx)
	if err != nil {
		return nil, nil, err
	}
	retry := c.publishLetter
	if !t.IsMessageTable() {
		key, err := t.KeyColumn(c.options.Key)
		if err != nil {
			return nil, nil, err
		}
		retry = func(ctx context.Context, tx *sqlx.Tx, t *table.Table, _, message uint64, group string) (uint64, error) {
			return c.askForRow(ctx, tx, t, key.Name, message, group)
		}
	}
	err = c.eachLetter(ctx, t, f, func(ctx context.Context, letter uint64) error {
		id, err := c.retryLetter(ctx, t, letter, retry)
		switch {
		case errors.Is(err, errNoLetter): // another call has done it
			return nil
		case errors.Is(err, errGone):
			gone = append(gone, letter)
			return nil
		case err == nil:
			messages = append(messages, id)
		}
		return err
	})
	if len(messages) > 0 && t.IsMessageTable() {
		if woken := c.db.Wake(ctx, t.Name); woken != nil { // the messages are stored, and the group finds them by polling
			c.log.DebugContext(ctx, "the group was not woken", "error", woken)
		}
	}
	return messages, gone, err
}

// errGone means that the row of a dead letter is no longer in the table.
var errGone = errors.New("the row is gone")

// retryLetter locks a dead letter and calls again with it, in a transaction.
func (c *Consumer) retryLetter(ctx context.Context, t *table.Table, letter uint64,
	again func(ctx context.Context, tx *sqlx.Tx, t *table.Table, letter, message uint64, group string) (uint64, error),
) (id uint64, err error) {
	err = server.Again(ctx, server.Retryable, func() error {
		tx, err := c.db.Pool().BeginTxx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after a commit
		var message uint64
		var group string
		err = tx.QueryRowxContext(ctx, "SELECT message_id, group_name FROM "+schema.DeadLetterTable+" WHERE id = ? AND topic = ? FOR UPDATE",
			letter, t.Name).Scan(&message, &group)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return errNoLetter
		case err != nil:
			return err
		}
		if id, err = again(ctx, tx, t, letter, message, group); err != nil {
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		return 0, stateError(fmt.Sprintf("retry dead letter %d", letter), err)
	}
	return id, nil
}

// publishLetter publishes the message of a dead letter for its group, and deletes the dead letter. The server copies the payload,
// because it may be as large as a packet, and the further columns, by which the group may select its messages.
func (c *Consumer) publishLetter(ctx context.Context, tx *sqlx.Tx, t *table.Table, letter, message uint64, group string) (uint64, error) {
	payload := "l.payload"
	if column, err := t.Column("payload"); err == nil && column.CharSet != "" { // the dead letter has it in UTF-8, as bytes
		payload = "CONVERT(l.payload USING utf8mb4)"
	}
	name := ident.Quote(t.Name)
	columns, values, from := "headers, payload", "JSON_SET(COALESCE(l.headers, '{}'), ?, ?), "+payload, schema.DeadLetterTable+" AS l"
	further := t.FurtherColumns()
	for _, column := range further {
		columns += ", " + ident.Quote(column)
		values += ", o." + ident.Quote(column)
	}
	if len(further) > 0 {
		from += " JOIN " + name + " AS o ON o.id = l.message_id"
	}
	result, err := tx.ExecContext(ctx, "INSERT INTO "+name+" ("+columns+") SELECT "+values+" FROM "+from+" WHERE l.id = ?",
		`$."`+retryHeader+`"`, fmt.Sprintf("%s/%d", group, message), letter)
	if err != nil {
		return 0, err
	}
	if n, err := result.RowsAffected(); err == nil && n == 0 {
		return 0, errGone
	}
	id, err := result.LastInsertId()
	if err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, "DELETE FROM "+schema.DeadLetterTable+" WHERE id = ?", letter)
	return uint64(id), err
}

// askForRow stores that the group's consumer must read the row again.
func (c *Consumer) askForRow(ctx context.Context, tx *sqlx.Tx, t *table.Table, key string, message uint64, group string) (uint64, error) {
	var there int
	err := tx.QueryRowxContext(ctx, "SELECT 1 FROM "+ident.Quote(t.Name)+" WHERE "+ident.Quote(key)+" = ?", message).Scan(&there)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errGone
	}
	if err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, "INSERT IGNORE INTO "+schema.RetryTable+" (topic, group_name, message_id) VALUES (?, ?, ?)", t.Name, group, message)
	return message, err
}

// DeleteDead deletes the dead letters that DeadLetters would return, each in a transaction of its own, and returns how many it
// deleted. The messages stay in the topic. The error is one of those of DeadLetters; deletions before the error remain.
func (c *Consumer) DeleteDead(ctx context.Context, f DeadFilter) (n int, err error) {
	t, err := c.table(ctx)
	if err != nil {
		return 0, err
	}
	remove := func(ctx context.Context, tx *sqlx.Tx, t *table.Table, letter, message uint64, group string) (uint64, error) {
		if !t.IsMessageTable() {
			if err := endRetry(ctx, tx, group, Message{Topic: t.Name, ID: message}); err != nil {
				return 0, err
			}
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM "+schema.DeadLetterTable+" WHERE id = ?", letter)
		return message, err
	}
	err = c.eachLetter(ctx, t, f, func(ctx context.Context, letter uint64) error {
		_, err := c.retryLetter(ctx, t, letter, remove)
		switch {
		case errors.Is(err, errNoLetter):
			return nil
		case err == nil:
			n++
		}
		return err
	})
	return n, err
}

// eachLetter calls do with every dead letter that the filter selects and that exists when eachLetter begins, so that a message
// that fails again is not retried twice.
func (c *Consumer) eachLetter(ctx context.Context, t *table.Table, f DeadFilter, do func(ctx context.Context, letter uint64) error) error {
	const page = 1000
	if _, _, err := f.where(t.Name, c.options.Group); err != nil {
		return err
	}
	limit := cmp.Or(f.Limit, math.MaxInt)
	var newest sql.Null[uint64]
	err := c.db.Pool().QueryRowxContext(ctx, "SELECT MAX(id) FROM "+schema.DeadLetterTable+" WHERE topic = ?", t.Name).Scan(&newest)
	if err != nil {
		return stateError("read dead letters", err)
	}
	for f.After < newest.V && limit > 0 {
		where, args, err := f.where(t.Name, c.options.Group)
		if err != nil {
			return err
		}
		var letters []uint64
		err = c.db.Pool().SelectContext(ctx, &letters, "SELECT l.id FROM "+schema.DeadLetterTable+" AS l"+where+" AND l.id <= ? ORDER BY l.id LIMIT ?",
			append(args, newest.V, min(page, limit))...)
		if err != nil {
			return stateError("read dead letters", err)
		}
		for _, letter := range letters {
			if err := do(ctx, letter); err != nil {
				return err
			}
			f.After = letter
		}
		if limit -= len(letters); len(letters) < page {
			return nil
		}
	}
	return nil
}
