package consumer

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A message that is published again for one group is delivered to that group, and to consumers without
// a group; the other groups count it as handled.
func TestRetryOfAGroup(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		_, err := db.Pool().ExecContext(t.Context(), "INSERT INTO orders (headers, payload) VALUES (NULL, 'a'),"+
			` ('{"mqnotify-retry":"mail/er/17"}', 'again'), ('{"mqnotify-retry":"odd"}', 'odd'), ('{}', 'b')`)
		require.NoError(t, err)
		for group, want := range map[string][]string{
			"":        {"a", "again", "odd", "b"},
			"mail/er": {"a", "again", "odd", "b"},
			"mail":    {"a", "odd", "b"},
		} {
			var got collected
			require.NoError(t, run(t, db, "orders", Options{Group: group, From: "beginning", StopAtEnd: true}, got.handler()).wait(t))
			require.Equal(t, want, got.payloads(), group)
			if group != "" {
				var settled uint64
				require.NoError(t, db.Pool().GetContext(t.Context(), &settled, "SELECT settled FROM mqnotify_offset WHERE group_name = ?", group))
				require.Equal(t, uint64(4), settled)
			}
		}
	})
}

// If a handler has handled a part of a page, the messages for other groups before that count as handled.
func TestRetryInAPage(t *testing.T) {
	other, failed := map[string]string{retryHeader: "other/1"}, errors.New("failed")
	page := []Message{{ID: 1, Headers: other}, {ID: 2}, {ID: 3, Headers: other}, {ID: 4}, {ID: 5}, {ID: 6, Headers: other}}
	for n, want := range map[int]int{0: 0, 1: 2, 2: 4, 3: 5, 9: 5} {
		h := Batch(func(_ context.Context, messages []Message) error {
			require.Len(t, messages, 3)
			return Handled(n, failed)
		}).of("g")
		err := h.call(t.Context(), nil, page)
		require.ErrorIs(t, err, failed)
		require.Equal(t, want, (&delivery{handler: h}).handledOf(err, len(page)))
	}
	none := Batch(func(context.Context, []Message) error { return failed })
	require.NoError(t, none.of("g").call(t.Context(), nil, page[:1]))
	require.ErrorIs(t, none.of("").call(t.Context(), nil, page[:1]), failed)
}
