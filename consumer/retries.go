package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// retryWait is how often a group's reader polls for requests to retry dead letters of rows.
const retryWait = 5 * time.Second

// gone is the error of a dead letter whose retry was requested and whose row no longer exists.
const gone = "tried again, but the row is gone, or the consumer's condition excludes it"

// retries are the requests to retry a group's dead letters. Messages of a message table are published again for the group; for rows
// there are requests in RetryTable, which end when the row is handled or becomes a dead letter again.
type retries struct {
	topic, group string
	next         time.Time // no poll before this time
	allowed      bool      // the account may delete requests and dead letters
}

// retry hands out the rows whose retry was requested, and returns when they are handled.
func (r *reader) retry(ctx context.Context) error {
	if r.retries == nil || time.Now().Before(r.retries.next) {
		return nil
	}
	r.retries.next = time.Now().Add(retryWait)
	for after := uint64(0); ; {
		ids, err := r.retries.asked(ctx, r.rows.session, after)
		if server.Is(err, server.ErrNoSuchTable) || server.NoPrivilege(err) {
			r.retries.off(ctx, r.log, err)
			r.retries = nil
			return nil
		}
		if err != nil || len(ids) == 0 {
			return err
		}
		if after, err = r.retryRows(ctx, ids); err != nil {
			return err
		}
	}
}

// retryRows hands out the rows of the ids, as many as fit into a page, and returns the last id that it has processed.
func (r *reader) retryRows(ctx context.Context, ids []uint64) (last uint64, err error) {
	ids = ids[:min(len(ids), r.limit)]
	spans := make([]position.Span, len(ids))
	for i, id := range ids {
		spans[i] = position.Span{Lo: id, Hi: id}
	}
	page, err := r.rows.again(ctx, spans)
	if err != nil {
		return 0, fmt.Errorf("consumer: read rows of dead letters: %w", err)
	}
	last = ids[len(ids)-1]
	if page.full {
		last = page.messages[len(page.messages)-1].ID
	}
	var again []Message
	for _, id := range ids {
		if id > last {
			break
		}
		at := slices.IndexFunc(page.messages, func(m Message) bool { return m.ID == id })
		missing := Message{Topic: r.retries.topic, ID: id}
		switch {
		case at < 0:
			r.log.WarnContext(ctx, "a dead letter can't be tried again: its row is gone, or the consumer's condition excludes it", "id", id)
			err = r.retries.end(ctx, r.rows.session, missing, gone)
		case page.messages[at].part == passed: // another member owns it
		case id > r.wm.settled && !r.wm.seen.Contains(id) && !r.rows.shares.handled(page.messages[at].part, id): // the group was reset, so the reader reads the row anyway
			err = r.retries.end(ctx, r.rows.session, missing, "")
		default:
			m := page.messages[at]
			m.retry = true
			again = append(again, m)
		}
		if err != nil {
			return 0, err
		}
	}
	if len(again) == 0 {
		return last, nil
	}
	r.log.InfoContext(ctx, "dead letters are tried again", "messages", len(again), "first", again[0].ID)
	return last, r.await(ctx, again)
}

// asked reads the ids of the rows whose retry was requested. The error may be that the account has no privilege, or that
// the table does not exist.
func (t *retries) asked(ctx context.Context, session *core.Session, after uint64) (ids []uint64, err error) {
	err = session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		err := conn.SelectContext(ctx, &ids, "SELECT message_id FROM "+schema.RetryTable+
			" WHERE topic = ? AND group_name = ? AND message_id > ? ORDER BY message_id LIMIT ?", t.topic, t.group, after, maxRanges)
		if err != nil || len(ids) == 0 || t.allowed {
			return err
		}
		// Check this before a row is handled, because a request that can't be deleted would be handled forever. No row has the id 0.
		for _, table := range []string{schema.DeadLetterTable + " WHERE id = 0", schema.RetryTable + " WHERE topic = '' AND group_name = '' AND message_id = 0"} {
			if _, err := conn.ExecContext(ctx, "DELETE FROM "+table); err != nil {
				return err
			}
		}
		t.allowed = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("consumer: read which dead letters are tried again: %w", err)
	}
	return ids, nil
}

// off logs why dead letters are not retried. A missing table is no warning, because then there are no requests.
func (t *retries) off(ctx context.Context, log *slog.Logger, err error) {
	level := slog.LevelWarn
	if server.Is(err, server.ErrNoSuchTable) {
		level = slog.LevelDebug
	}
	log.Log(ctx, level, "dead letters are not tried again by this consumer (mqnotify grants prints the privileges)", "error", err)
}

// end ends the request for a row that is not handed out. It stores the reason in the dead letter, unless reason is empty.
func (t *retries) end(ctx context.Context, session *core.Session, m Message, reason string) error {
	return session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		if reason != "" {
			_, err := conn.ExecContext(ctx, "UPDATE "+schema.DeadLetterTable+
				" SET error = ? WHERE topic = ? AND group_name = ? AND message_id = ?", reason, t.topic, t.group, m.ID)
			if err != nil {
				return stateError("store why a dead letter was not tried again", err)
			}
		}
		return endRetry(ctx, conn, t.group, m)
	})
}

// endRetry deletes the request to try a message again.
func endRetry(ctx context.Context, db notify.Tx, group string, m Message) error {
	_, err := db.ExecContext(ctx, "DELETE FROM "+schema.RetryTable+" WHERE topic = ? AND group_name = ? AND message_id = ?", m.Topic, group, m.ID)
	if err != nil {
		return stateError("end a retry", err)
	}
	return nil
}

// retried deletes the dead letter and the request of a message that was handled after all. Its error is an ownError, because the
// handler did not fail.
func (d *delivery) retried(ctx context.Context, tx *sqlx.Tx, m Message) error {
	err := endRetry(ctx, tx, d.options.Group, m)
	if err == nil {
		_, err = tx.ExecContext(ctx, "DELETE FROM "+schema.DeadLetterTable+" WHERE topic = ? AND group_name = ? AND message_id = ?",
			m.Topic, d.options.Group, m.ID)
		if err != nil {
			err = stateError("delete a dead letter", err)
		}
	}
	if err != nil {
		return ownError{err}
	}
	return nil
}

// again reads rows of dead letters, which members that share the group have handled before.
func (r *rows) again(ctx context.Context, spans []position.Span) (*page, error) {
	if r.shares != nil {
		r.shares.again = true
		defer func() { r.shares.again = false }()
	}
	return r.within(ctx, spans, len(spans))
}
