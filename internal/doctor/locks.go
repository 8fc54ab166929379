package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/notify"
)

// locks takes two advisory locks with one session. With another session it reads their holders and tries to take the first.
func locks(ctx context.Context, e *exam) ([]Result, error) {
	holder, err := e.open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = holder.Close() }() // this releases the locks
	other, err := e.open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = other.Close() }()

	mark := strings.ToLower(rand.Text())
	names := []string{core.LockName("doctor", mark, "1"), core.LockName("doctor", mark, "2")}
	for _, name := range names {
		if _, err := holder.TryLock(ctx, name); err != nil {
			if e.lost(err) {
				return nil, err
			}
			return []Result{problem("without advisory locks only consume --mode poll without a group works", "advisory locks do not work: %s", plain(err))}, nil
		}
	}
	var seen struct {
		First  uint64 `db:"first"`
		Second uint64 `db:"second"`
	}
	err = other.Do(ctx, func(conn *sqlx.Conn) error {
		return conn.GetContext(ctx, &seen,
			"SELECT COALESCE(IS_USED_LOCK(?), 0) AS first, COALESCE(IS_USED_LOCK(?), 0) AS second", names[0], names[1])
	})
	if err != nil {
		return nil, err
	}
	if seen.Second == holder.ID() && seen.First == 0 {
		return []Result{problem("upgrade the server: it is too old", "a session keeps only one advisory lock: a second one releases the first")}, nil
	}
	if seen.First != holder.ID() || seen.Second != holder.ID() {
		return []Result{problem("connect to the server itself", "session %d holds two advisory locks, and another session sees the sessions %d and %d as their holders: "+
			"the two sessions are on different servers, or a proxy is in between", holder.ID(), seen.First, seen.Second)}, nil
	}
	switch _, err := other.TryLock(ctx, names[0]); {
	case err == nil:
		return []Result{problem("connect to one server", "two sessions hold the same advisory lock at the same time")}, nil
	case !errors.Is(err, notify.ErrNotAcquired):
		return nil, err
	}
	return []Result{ok("advisory locks work: one session can hold two, and they exclude another session")}, nil
}
