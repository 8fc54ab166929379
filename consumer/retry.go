package consumer

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"
)

// retryHeader is the header of a message that is published again for the one group that
// had given it up: "GROUP/ID", the group and the id that it had. Every other group counts
// it as handled and gives it to no handler; a consumer without a group gets it.
const retryHeader = "mqnotify-retry"

// isFor reports whether a message is for the group.
func (m Message) isFor(group string) bool {
	retry, is := m.Headers[retryHeader]
	if !is {
		return true
	}
	at := strings.LastIndexByte(retry, '/') // a group's name may have one
	return at < 0 || retry[:at] == group
}

// of is the handler, which gets no message that is not for the group.
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
