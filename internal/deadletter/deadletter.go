// Package deadletter stores dead letters.
package deadletter

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/mqnotify/mqnotify/internal/header"
	"github.com/mqnotify/mqnotify/internal/schema"
)

// MaxError is the maximum length of a stored error text, in bytes; the column is a TEXT.
const MaxError = 8 << 10

// Letter is a message that becomes a dead letter.
type Letter struct {
	Topic, Group string
	ID           uint64
	Headers      map[string]string // nil if there are none
	Payload      []byte
	Attempts     int
	Cause        error
}

// Write writes a dead letter. It replaces an existing one of the same message, so that a message that is handled again after a crash
// or a reset has one dead letter. It returns the server's errors.
func Write(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, l Letter) error {
	var headers any
	if l.Headers != nil {
		text, err := header.Marshal(l.Headers)
		if err != nil {
			return fmt.Errorf("write its headers: %w", err)
		}
		headers = string(text)
	}
	reason := strings.ToValidUTF8(l.Cause.Error(), string(utf8.RuneError))
	if len(reason) > MaxError {
		reason = strings.ToValidUTF8(reason[:MaxError], "")
	}
	_, err := db.ExecContext(ctx, "INSERT INTO "+schema.DeadLetterTable+
		" (topic, group_name, message_id, headers, payload, attempts, error) VALUES (?, ?, ?, ?, ?, ?, ?)"+
		" ON DUPLICATE KEY UPDATE headers = VALUES(headers), payload = VALUES(payload), attempts = VALUES(attempts),"+
		" error = VALUES(error), failed_at = CURRENT_TIMESTAMP(6)",
		l.Topic, l.Group, l.ID, headers, l.Payload, l.Attempts, reason)
	return err
}
