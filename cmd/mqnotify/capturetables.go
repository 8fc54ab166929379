package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// captureTables returns, sorted by name, the tables that match a pattern of LIKE, without message tables and
// mqnotify's own tables. The error is notify.ErrNoTable if none matches. A name without a % is returned as it is.
func captureTables(ctx context.Context, db *notify.DB, pattern string) (names []string, err error) {
	if !strings.Contains(pattern, "%") {
		return []string{pattern}, nil
	}
	// With another escape character than the backslash the statement means the same in every sql_mode.
	escaped := strings.NewReplacer(`\\`, `\`, `\`, "|", "|", "||").Replace(pattern)
	var all []string
	err = db.Pool().SelectContext(ctx, &all, `SELECT TABLE_NAME FROM information_schema.TABLES
		WHERE TABLE_SCHEMA = ? AND TABLE_TYPE = 'BASE TABLE' AND TABLE_NAME LIKE ? ESCAPE '|' ORDER BY TABLE_NAME`, db.Name(), escaped)
	if err != nil {
		return nil, fmt.Errorf("list the tables like %q: %w", pattern, err)
	}
	for _, name := range all {
		t, err := table.Describe(ctx, db.Pool(), db.Name(), name)
		if err != nil {
			return nil, err
		}
		if !t.IsMessageTable() && !strings.HasPrefix(strings.ToLower(name), "mqnotify_") {
			names = append(names, t.Name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no table like %q can be captured: %w", pattern, notify.ErrNoTable)
	}
	return names, nil
}
