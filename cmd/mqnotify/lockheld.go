package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// envHeld names the variable with the locks, as a JSON array, that the commands above this one hold while it runs.
const envHeld = "MQNOTIFY_LOCKS_HELD"

// stillWaiting is how long lock waits before it logs the holder.
const stillWaiting = 5 * time.Second

// heldAbove returns the locks that commands above this one hold; none if the variable is malformed.
func (a *app) heldAbove() (locks []string) {
	_ = json.Unmarshal([]byte(a.getenv(envHeld)), &locks)
	return locks
}

// withHeld returns the variable for a command that runs while the locks above and one more are held.
func withHeld(above []string, lock string) string {
	text, _ := json.Marshal(append(slices.Clip(above), lock)) // marshalling strings can't fail
	return envHeld + "=" + string(text)
}

// reportWait logs the holder of the lock once, if the wait is long. The caller calls done when the wait has ended.
func (a *app) reportWait(ctx context.Context, o lockOptions, db *notify.DB, name string, above []string) (done func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-time.After(stillWaiting):
		case <-ctx.Done():
			return
		}
		holder, err := o.holder(ctx, db, name)
		if ctx.Err() != nil {
			return
		}
		args := []any{"lock", name, "holder", holder}
		if err != nil {
			args = append(args, "error", err)
		}
		if len(above) > 0 { // the holder may wait for one of these
			args = append(args, "held above this command", above)
		}
		a.log.WarnContext(ctx, "still waiting for the lock", args...)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// holder describes the lock's holder for the log.
func (o lockOptions) holder(ctx context.Context, db *notify.DB, name string) (string, error) {
	const none = "none any more"
	if o.kind == kindLease {
		var seconds int
		err := db.Pool().QueryRowxContext(ctx, "SELECT TIMESTAMPDIFF(SECOND, taken_at, UTC_TIMESTAMP(6)) FROM "+schema.LeaseTable+
			" WHERE name = ? AND expires_at > UTC_TIMESTAMP(6)", name).Scan(&seconds)
		if errors.Is(err, sql.ErrNoRows) {
			return none, nil
		}
		return fmt.Sprintf("a lease taken %v ago", time.Duration(seconds)*time.Second), err
	}
	caps, err := server.Discover(ctx, db.Pool())
	if err != nil {
		return "", err
	}
	var id sql.Null[uint64]
	lock := core.LockName("mutex", core.Folded(caps, db.Name()), name)
	if err := db.Pool().QueryRowxContext(ctx, "SELECT IS_USED_LOCK(?)", lock).Scan(&id); err != nil {
		return "", err
	}
	if !id.Valid {
		return none, nil
	}
	var user, host string
	err = db.Pool().QueryRowxContext(ctx, "SELECT USER, HOST FROM information_schema.PROCESSLIST WHERE ID = ?", id.V).Scan(&user, &host)
	if errors.Is(err, sql.ErrNoRows) { // another account's session, which this account can't see without PROCESS
		return fmt.Sprintf("connection %d", id.V), nil
	}
	return fmt.Sprintf("connection %d, %s@%s", id.V, user, host), err
}
