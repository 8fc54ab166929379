package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mqnotify/mqnotify/capture"
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
		if errors.Is(err, notify.ErrNoTable) { // it was dropped just now
			continue
		}
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

// eachTable calls f for each table. If a pattern has named the tables, eachTable goes on after errors about a single table, and returns
// an error at the end that is no mistake in the command line.
func (a *app) eachTable(ctx context.Context, pattern string, names []string, f func(name string) error) error {
	var failed []string
	for _, name := range names {
		err := f(name)
		ofTable := errors.As(err, new(*capture.TriggerExistsError))
		for _, known := range []error{
			notify.ErrOptions, notify.ErrNotTopic, notify.ErrNoTable, notify.ErrNotAcquired, capture.ErrNotCaptured, capture.ErrBusy,
		} {
			ofTable = ofTable || errors.Is(err, known)
		}
		switch {
		case ofTable && name != pattern && ctx.Err() == nil:
			a.log.WarnContext(ctx, "failed: going on with the next table", "table", name, "error", err)
			failed = append(failed, name)
		case err != nil:
			return err
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of the %d tables like %q failed: %s", len(failed), len(names), pattern, strings.Join(failed, ", "))
	}
	return nil
}
