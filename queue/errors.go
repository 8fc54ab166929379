package queue

import (
	"errors"
	"fmt"

	"github.com/mqnotify/mqnotify/internal/dberror"
	names "github.com/mqnotify/mqnotify/internal/name"
	"github.com/mqnotify/mqnotify/notify"
)

// Errors that callers decide on, with errors.Is, next to those of notify.
var (
	// ErrNotFound means that there is no queue of the name: [Create] makes it, and so does `mqnotify init --queue NAME`.
	ErrNotFound = errors.New("does not exist")
	// ErrClaimLost is the cause of the end of a handler's context, and what [FinishTx]
	// returns, when the task is not the worker's any more: its claim lapsed, since the
	// server was out of reach, or the task was cancelled.
	ErrClaimLost = errors.New("the claim on the task is lost")
)

func optionsf(format string, args ...any) error {
	return fmt.Errorf("queue: %w: %w", notify.ErrOptions, fmt.Errorf(format, args...))
}

// explain says what to do about an error of the server's.
func explain(err error) error {
	return dberror.Explain(err, "task", "enqueuer,worker,tasks,scheduler")
}

// checkName returns what is wrong with the name of a queue or a schedule.
func checkName(what, name string, most int) error {
	if problem := names.Problem(name, most); problem != "" {
		return optionsf("%s %.80q: %s", what, name, problem)
	}
	return nil
}
