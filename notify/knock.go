package notify

import (
	"context"
	"time"

	"github.com/jmoiron/sqlx"
)

// knocks is the flag that is set to make a commit. No table has such a name.
const knocks = "mqnotify/knock"

// knocker makes a keeper look that sleeps until the next commit (GTIDs): it makes one.
type knocker struct {
	session *Session
	last    time.Time
	mute    bool // this account can't
}

// knock does so once a second, at most. What goes wrong with the session shows later.
func (k *knocker) knock(ctx context.Context) {
	if k.mute || !k.session.Capabilities().GTID || time.Since(k.last) < time.Second {
		return
	}
	k.last = time.Now()
	err := k.session.ask(ctx, answer, func(ctx context.Context, conn *sqlx.Conn) error {
		return Flag{Topic: knocks}.Set(ctx, conn)
	})
	k.mute = err != nil
}
