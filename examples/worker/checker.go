package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify"
	"github.com/mqnotify/mqnotify/queue"
)

// checker requests links and stores the answers' status.
type checker struct {
	db *sqlx.DB
}

// handle checks a link. Its ctx is canceled when another worker may take the job.
func (c checker) handle(ctx context.Context, task mqnotify.Task[string]) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, task.Value, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", mqnotify.ErrDead, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	switch code := response.StatusCode; {
	case code == http.StatusNotFound, code == http.StatusGone:
		return fmt.Errorf("%w: %s", mqnotify.ErrDead, response.Status)
	case code >= 400:
		return fmt.Errorf("%s", response.Status)
	}

	// Each result is stored once: the transaction fails if another worker has the job by now.
	tx, err := c.db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	const note = "INSERT INTO links (url, status, attempts) VALUES (?, ?, ?)"
	if _, err := tx.ExecContext(ctx, note, task.Value, response.StatusCode, task.Attempt); err != nil {
		return err
	}
	if err := queue.FinishTx(ctx, tx, task.Task); err != nil {
		return err
	}
	return tx.Commit()
}
