// Package deadletter stores dead letters.
package deadletter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/mqnotify/mqnotify/internal/header"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/table"
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
	IsRow        bool // Payload is the JSON of columns
	Attempts     int
	Cause        error
}

// Write writes a dead letter, without the payload if that is the JSON of a row and larger than a packet of the server. It replaces an
// existing one of the same message, so that a message that is handled again after a crash or a reset has one dead letter. The dead
// letter of a message that was read by its columns has the whole message, which a retry publishes. Write returns the server's errors.
func Write(ctx context.Context, db notify.Tx, l Letter) error {
	var headers any
	var headerBytes int
	if l.Headers != nil {
		text, err := header.Marshal(l.Headers)
		if err != nil {
			return fmt.Errorf("write its headers: %w", err)
		}
		headers, headerBytes = string(text), len(text)
	}
	reason := cut(strings.ToValidUTF8(l.Cause.Error(), string(utf8.RuneError)), MaxError)
	const insert = "INSERT INTO " + schema.DeadLetterTable +
		" (topic, group_name, message_id, headers, payload, attempts, error) VALUES (?, ?, ?, ?, ?, ?, ?)" +
		" ON DUPLICATE KEY UPDATE headers = VALUES(headers), payload = VALUES(payload), attempts = VALUES(attempts)," +
		" error = VALUES(error), failed_at = CURRENT_TIMESTAMP(6)"
	var most int
	if err := db.QueryRowContext(ctx, "SELECT @@max_allowed_packet").Scan(&most); err != nil {
		return err
	}
	room := most - headerBytes - len(l.Payload) - other
	large := room < len(reason)
	switch {
	case large && !l.IsRow: // copyMessage copies it within the server
		headers, l.Payload, room = nil, []byte{}, most
	case large:
		note := fmt.Sprintf(" (the row's JSON is not stored: it has %d bytes, and the server takes %d, see max_allowed_packet)", len(l.Payload), most)
		reason, room = cut(reason, MaxError-len(note))+note, most
		l.Payload = []byte{}
	}
	reason = cut(reason, room)
	stmt, err := db.PrepareContext(ctx, insert) // the payload is sent as it is; escaped it might not fit into a packet
	if err != nil {
		return err
	}
	defer func() { _ = stmt.Close() }()
	if _, err = stmt.ExecContext(ctx, l.Topic, l.Group, l.ID, headers, l.Payload, l.Attempts, reason); err != nil || !l.IsRow && !large {
		return err
	}
	return copyMessage(ctx, db, l)
}

// copyMessage replaces what is stored by the message, if the topic is a message table.
func copyMessage(ctx context.Context, db notify.Tx, l Letter) error {
	var database string
	if err := db.QueryRowContext(ctx, "SELECT DATABASE()").Scan(&database); err != nil {
		return err
	}
	topic, err := table.Describe(ctx, db, database, l.Topic)
	if errors.Is(err, table.ErrNoTable) {
		return nil
	}
	if err != nil || !topic.IsMessageTable() {
		return err
	}
	payload := "o.payload"
	if column, err := topic.Column("payload"); err == nil && column.CharSet != "" {
		payload = "CONVERT(o.payload USING utf8mb4)"
	}
	_, err = db.ExecContext(ctx, "UPDATE "+schema.DeadLetterTable+" l JOIN "+ident.Quote(l.Topic)+" o ON o.id = l.message_id SET l.headers = o.headers, l.payload = "+
		payload+" WHERE l.topic = ? AND l.group_name = ? AND l.message_id = ?", l.Topic, l.Group, l.ID)
	return err
}

// other is more than the bytes of a packet besides the headers, the payload and the error.
const other = 2048

// cut shortens a text to a number of bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:max(0, most)], "")
}
