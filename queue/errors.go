package queue

import (
	"errors"
	"fmt"

	"github.com/mqnotify/mqnotify/internal/dberror"
	names "github.com/mqnotify/mqnotify/internal/name"
	"github.com/mqnotify/mqnotify/notify"
)

// Errors to check with errors.Is, in addition to those of notify.
var (
	// ErrNotFound means that no queue has the name: [Create] creates one, and so does `mqnotify init --queue NAME`.
	ErrNotFound = errors.New("does not exist")
	// ErrClaimLost is the cause of a handler's context, and the error of [FinishTx],
	// when the worker no longer has the task: its claim lapsed because the
	// server could not be reached, or the task was cancelled.
	ErrClaimLost = errors.New("the claim on the task is lost")
)

func optionsf(format string, args ...any) error {
	return fmt.Errorf("queue: %w: %w", notify.ErrOptions, fmt.Errorf(format, args...))
}

// explain adds the remedy to an error of the server.
func explain(err error) error {
	return dberror.Explain(err, "task", "enqueuer,worker,tasks,scheduler")
}

// checkName returns an error if the name of a queue or a schedule is invalid.
func checkName(what, name string, most int) error {
	if problem := names.Problem(name, most); problem != "" {
		return optionsf("%s %.80q: %s", what, name, problem)
	}
	return nil
}
