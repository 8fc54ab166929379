package consumer

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// maxError is how much of an error's text is kept, in bytes, within a TEXT column.
const maxError = 8 << 10

// Bury writes a message to a group's dead letters: for a handler that knows that no
// further attempt would help, and passes the message by. One that is there already
// is replaced, so a message that comes again after a crash or a reset is no second
// letter. The error is notify.ErrNoState or the server's.
func Bury(ctx context.Context, db notify.Tx, group string, m Message, attempts int, cause error) error {
	var headers any
	if m.Headers != nil {
		text, err := marshal(m.Headers)
		if err != nil {
			return fmt.Errorf("consumer: write dead letter: %w", err)
		}
		headers = string(text)
	}
	reason := strings.ToValidUTF8(cause.Error(), string(utf8.RuneError))
	if len(reason) > maxError {
		reason = strings.ToValidUTF8(reason[:maxError], "")
	}
	_, err := db.ExecContext(ctx, "INSERT INTO "+schema.DeadLetterTable+
		" (topic, group_name, message_id, headers, payload, attempts, error) VALUES (?, ?, ?, ?, ?, ?, ?)"+
		" ON DUPLICATE KEY UPDATE headers = VALUES(headers), payload = VALUES(payload), attempts = VALUES(attempts),"+
		" error = VALUES(error), failed_at = CURRENT_TIMESTAMP(6)",
		m.Topic, group, m.ID, headers, m.Payload, attempts, reason)
	if err != nil {
		return stateError("write dead letter", err)
	}
	return nil
}
