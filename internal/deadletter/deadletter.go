// Package deadletter stores dead letters.
package deadletter

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/mqnotify/mqnotify/internal/header"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// MaxError is the maximum length of a stored error text, in bytes; the column is a TEXT.
const MaxError = 8 << 10

// Letter is a message that becomes a dead letter.
type Letter struct {
	Topic, Group string
	ID           uint64
	Headers      map[string]string // nil if there are none
	Payload      []byte
	IsRow        bool // Payload is the JSON of a row, and a retry reads the row again
	Attempts     int
	Cause        error
}

// large is the size in bytes from which Write sends a payload apart from its statement, unescaped, and asks what the server takes.
const large = 1 << 20

// Write writes a dead letter. Without its payload if that is a row's and the server does not take so many bytes. It replaces an existing one of the same message, so that a message that is handled again after a crash
// or a reset has one dead letter. It returns the server's errors.
func Write(ctx context.Context, db notify.Tx, l Letter) error {
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
	const insert = "INSERT INTO " + schema.DeadLetterTable +
		" (topic, group_name, message_id, headers, payload, attempts, error) VALUES (?, ?, ?, ?, ?, ?, ?)" +
		" ON DUPLICATE KEY UPDATE headers = VALUES(headers), payload = VALUES(payload), attempts = VALUES(attempts)," +
		" error = VALUES(error), failed_at = CURRENT_TIMESTAMP(6)"
	if len(l.Payload) < large {
		_, err := db.ExecContext(ctx, insert, l.Topic, l.Group, l.ID, headers, l.Payload, l.Attempts, reason)
		return err
	}
	if l.IsRow {
		var most int
		if err := db.QueryRowContext(ctx, "SELECT @@max_allowed_packet").Scan(&most); err != nil {
			return err
		}
		if len(l.Payload) > most {
			reason += fmt.Sprintf(" (the row's JSON is not stored: it has %d bytes, and the server takes %d, see max_allowed_packet)", len(l.Payload), most)
			l.Payload = []byte{}
		}
	}
	stmt, err := db.PrepareContext(ctx, insert)
	if err != nil {
		return err
	}
	defer func() { _ = stmt.Close() }()
	_, err = stmt.ExecContext(ctx, l.Topic, l.Group, l.ID, headers, l.Payload, l.Attempts, reason)
	return err
}
