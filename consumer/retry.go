package consumer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"
)

// retryHeader is the header of a message that was published again for the group that had made it a dead letter. Its value is
// "GROUP/ID", with the id that the message had. All other groups count the message as handled without calling the handler; a consumer
// without a group handles it.
const retryHeader = "mqnotify-retry"

// isFor reports whether a message is for the group.
func (m Message) isFor(group string) bool {
	retry := cmp.Or(m.Headers[retryHeader], m.retryOf)
	if retry == "" {
		return true
	}
	at := strings.LastIndexByte(retry, '/') // the group's name may contain a slash, too
	return at < 0 || retry[:at] == group
}

// of returns a handler that skips messages that are not for the group.
func (h Handler) of(group string) Handler {
	if group == "" {
		return h
	}
	handle := h.handle
	h.handle = func(ctx context.Context, tx *sqlx.Tx, messages []Message) error {
		foreign := func(m Message) bool { return !m.isFor(group) }
		if !slices.ContainsFunc(messages, foreign) {
			return handle(ctx, tx, messages)
		}
		var ours []Message
		var places []int
		for i, m := range messages {
			if !foreign(m) {
				ours, places = append(ours, m), append(places, i)
			}
		}
		if len(ours) == 0 {
			return nil
		}
		err := handle(ctx, tx, ours)
		var part *partialError
		if errors.As(err, &part) && part.n > 0 {
			return Handled(places[min(part.n, len(ours))-1]+1, part.err)
		}
		return err
	}
	return h
}
