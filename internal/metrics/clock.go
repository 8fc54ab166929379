package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/notify"
)

// Clock measures how far the database's clock is ahead of this machine's. The zero value is ready for use. Safe for concurrent use.
type Clock struct {
	mu    sync.Mutex
	by    time.Duration
	since time.Time // when it was first known, by this machine's clock; zero before
}

// Ahead returns how far the database's clock is ahead, and whether that is known yet.
func (c *Clock) Ahead() (by time.Duration, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by, !c.since.IsZero()
}

// Run reads the database's clock once a minute, until ctx ends.
func (c *Clock) Run(ctx context.Context, db *notify.DB) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		var micros int64
		err := db.Pool().GetContext(ctx, &micros, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
		took := time.Since(began)
		wait.Reset(5 * time.Second)
		if err != nil {
			continue // the readers report the error
		}
		c.mu.Lock()
		if c.since.IsZero() {
			c.since = began
		}
		c.by = time.UnixMicro(micros).Sub(began.Add(took / 2))
		c.mu.Unlock()
		wait.Reset(time.Minute)
	}
}
