package serve

import (
	"context"
	"time"

	"github.com/mqnotify/mqnotify/notify"
)

// pulse checks whether the database answers. A reader that waits to be woken sends nothing, so it would notice a lost connection late.
type pulse struct {
	db     *notify.DB
	permit chan struct{} // its holder has the fields below
	at     time.Time
	err    error
}

func newPulse(db *notify.DB) *pulse { return &pulse{db: db, permit: make(chan struct{}, 1)} }

// check pings the database at most once a second, however many requests call it.
func (p *pulse) check(ctx context.Context) error {
	select {
	case p.permit <- struct{}{}:
		defer func() { <-p.permit }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if p.at.IsZero() || time.Since(p.at) > time.Second {
		// Other requests use the answer too, so this request's end does not interrupt the ping.
		ping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		p.err = p.db.Pool().PingContext(ping)
		p.at = time.Now()
	}
	return p.err
}
