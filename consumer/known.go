package consumer

import (
	"context"
	"time"

	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// Writers tells which way of knowing the topic's open writers Run takes here, by
// trying it over a connection of its own, and how long gaps are given grace
// besides: 0 where what is known is all there is. With Options.Writers set, the
// error says why that way does not work.
func (c *Consumer) Writers(ctx context.Context) (way Writers, grace time.Duration, err error) {
	t, err := table.Describe(ctx, c.db.Pool(), c.db.Name(), c.topic)
	if err != nil {
		return "", 0, err
	}
	session, err := c.db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = session.Close() }()
	source, grace, err := openSource(ctx, session, t, c.options.Writers, c.options.Grace)
	if err != nil {
		return "", 0, err
	}
	return source.name(), grace, nil
}
