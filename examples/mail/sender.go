package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/mqnotify/mqnotify"
	"github.com/mqnotify/mqnotify/guard"
)

// sender sends a mail at most once.
type sender struct {
	server string
	marks  *guard.Once
}

func (s sender) handle(ctx context.Context, task mqnotify.Task[mail]) error {
	mark := fmt.Sprintf("mail-%d", task.ID)
	ours, err := s.marks.Try(ctx, mark)
	switch {
	case err != nil:
		return err
	case !ours:
		return fmt.Errorf("%w: a sender marked it and did not finish: it may have been sent", mqnotify.ErrDead)
	}

	err = send(ctx, s.server, task.Value, mark)
	var outcome *sendError
	switch {
	case err == nil:
		slog.InfoContext(ctx, "sent", "mail", task.ID, "to", task.Value.To)
		return nil
	case errors.As(err, &outcome) && outcome.unknown, errors.As(err, &outcome) && outcome.permanent:
		return fmt.Errorf("%w: %w", mqnotify.ErrDead, err)
	}
	// It was certainly not sent: remove the mark, so that the queue tries again later. If the
	// mark can't be removed, the next attempt finds it and moves the task to the dead letters.
	if _, reset := s.marks.Reset(context.WithoutCancel(ctx), mark); reset != nil {
		return errors.Join(err, reset)
	}
	return err
}
