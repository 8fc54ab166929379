package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
)

// checker asks for links and notes the answers.
type checker struct {
	db *notify.DB
}

// handle's ctx ends when the job is not this worker's any more.
func (c checker) handle(ctx context.Context, task queue.Task) error {
	url := string(task.Payload)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", queue.ErrDead, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	switch code := response.StatusCode; {
	case code == http.StatusNotFound, code == http.StatusGone:
		return fmt.Errorf("%w: %s", queue.ErrDead, response.Status)
	case code >= 400:
		return fmt.Errorf("%s", response.Status)
	}

	// Exactly once: the transaction fails when another worker has the job by now.
	tx, err := c.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	const note = "INSERT INTO links (url, status, attempts) VALUES (?, ?, ?)"
	if _, err := tx.ExecContext(ctx, note, url, response.StatusCode, task.Attempt); err != nil {
		return err
	}
	if err := queue.FinishTx(ctx, tx, task); err != nil {
		return err
	}
	return tx.Commit()
}
