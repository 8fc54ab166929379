package notify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/mqnotify/mqnotify/internal/schema"
)

// Flag is a topic's one-row flag: a counter that producers or a trigger increment. Safe for concurrent use.
type Flag struct {
	Topic string
}

// storedTopic is the topic as the server stores the table's name.
const storedTopic = "IF(@@lower_case_table_names = 1, LOWER(?), ?)"

// Set increments the counter. Call it after the commit of a change and outside its transaction. Inside, the flag's row would stay
// locked until the commit, so the topic's writers would commit one at a time.
func (f Flag) Set(ctx context.Context, db Tx) error {
	_, err := db.ExecContext(ctx, "INSERT INTO "+schema.FlagTable+
		"  (topic, counter) VALUES ("+storedTopic+", 1) ON DUPLICATE KEY UPDATE counter = counter + 1", f.Topic, f.Topic)
	if err != nil {
		return fmt.Errorf("notify: set the flag of %q: %w", f.Topic, err)
	}
	return nil
}

// Read returns the counter; 0 means that the flag is not set.
func (f Flag) Read(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) (counter uint64, err error) {
	row := db.QueryRowContext(ctx, "SELECT counter FROM "+schema.FlagTable+" WHERE topic = "+storedTopic, f.Topic, f.Topic)
	if err := row.Scan(&counter); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("notify: read the flag of %q: %w", f.Topic, err)
	}
	return counter, nil
}

// Reset deletes the flag's row, and reports whether the flag was set. With Reset a flag can have only one reader.
func (f Flag) Reset(ctx context.Context, db Tx) (was bool, err error) {
	result, err := db.ExecContext(ctx, "DELETE FROM "+schema.FlagTable+" WHERE topic = "+storedTopic, f.Topic, f.Topic)
	if err != nil {
		return false, fmt.Errorf("notify: reset the flag of %q: %w", f.Topic, err)
	}
	rows, err := result.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("notify: reset the flag of %q: %w", f.Topic, err)
	}
	return rows > 0, nil
}
