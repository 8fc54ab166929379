package guard

import (
	"context"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// newRow returns the mutex of a row that exists while it is held: INSERT takes it, DELETE releases it, the primary key excludes.
func newRow(db *notify.DB, name string) *simple {
	return &simple{db, name, takeRow, "DELETE FROM " + schema.RowMutexTable + " WHERE name = ?"}
}

// takeRow inserts the row, or finds that an earlier statement of this attempt has inserted it.
func takeRow(ctx context.Context, db *notify.DB, name, taker string) (token uint64, ours bool, err error) {
	_, err = db.Pool().ExecContext(ctx, "INSERT INTO "+schema.RowMutexTable+
		" (name, taker, taken_at) VALUES (?, ?, UTC_TIMESTAMP(6))", name, taker)
	if server.Is(err, server.ErrDuplicate) {
		err = db.Pool().GetContext(ctx, &ours, "SELECT EXISTS (SELECT 1 FROM "+schema.RowMutexTable+
			" WHERE name = ? AND taker = ?)", name, taker)
		return 0, ours, err
	}
	return 0, err == nil, err
}

// newFlag returns the mutex of a boolean. Its row stays, and counts its holders.
func newFlag(db *notify.DB, name string) *simple {
	return &simple{db, name, takeFlag, "UPDATE " + schema.FlagMutexTable + " SET held = FALSE WHERE held AND name = ?"}
}

// takeFlag sets the boolean, in a row that it inserts if there is none.
func takeFlag(ctx context.Context, db *notify.DB, name, taker string) (token uint64, ours bool, err error) {
	const query = "INSERT INTO " + schema.FlagMutexTable + " (name, held, token, taker, taken_at)" +
		" VALUES (?, TRUE, LAST_INSERT_ID(1), ?, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE" +
		" token = IF(held, token + LAST_INSERT_ID(IF(taker = ?, token, 0)) * 0, LAST_INSERT_ID(token + 1))," +
		" taker = IF(held, taker, ?), taken_at = IF(held, taken_at, UTC_TIMESTAMP(6)), held = TRUE"
	result, err := db.Pool().ExecContext(ctx, query, name, taker, taker, taker)
	if err != nil {
		return 0, false, err
	}
	// The insert id is the token, or 0 if the lock is held. The count of rows does not show that; see everyQuery.
	id, err := result.LastInsertId()
	return uint64(id), id > 0, err
}

// simple is a mutex that is held until it is released.
type simple struct {
	db      *notify.DB
	name    string
	take    func(ctx context.Context, db *notify.DB, name, taker string) (token uint64, ours bool, err error)
	release string // the statement that releases the lock of any holder; takes the name
}

// undoing bounds how long a statement that takes a lock may continue after its context has ended, and how long the release of such a
// lock may take. Tests of slow machines make it longer.
var undoing = time.Second

func (s *simple) tryLock(ctx context.Context) (Held, error) { return s.try(ctx, newTaker()) }

func (s *simple) try(ctx context.Context, taker string) (Held, error) {
	var token uint64
	var ours bool
	err := again(ctx, func() (err error) {
		// The server does not stop a statement because its client is gone, and might take the lock after the client's attempt to
		// release it. The lock would then have no holder. So the statement has time to end.
		ctx, release := server.Linger(ctx, undoing)
		defer release()
		token, ours, err = s.take(ctx, s.db, s.name, taker)
		return err
	})
	if err == nil && ours && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	switch {
	case err != nil && (ours || ctx.Err() != nil || server.ConnectionLost(err)):
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
		defer cancel()
		_, _, _ = s.drop(ctx, taker)
	case err != nil:
	case !ours:
		err = notify.ErrNotAcquired
	default:
		return &heldSimple{grip: newGrip(s.name, token), mutex: s, taker: taker}, nil
	}
	return nil, explain("lock", s.name, err)
}

func (s *simple) await(ctx context.Context) (Held, error) {
	// All tries share one mark. A statement whose connection was lost may still run, and take the lock
	// after another holder released it; the next try then recognises the lock as its own.
	taker := newTaker()
	return persist(ctx, func(ctx context.Context) (Held, error) { return s.try(ctx, taker) })
}

// breakLock releases the lock of any holder, and reports whether it was held.
func (s *simple) breakLock(ctx context.Context) (bool, error) {
	var broke int64
	// Do not repeat it after a lost connection: the lock may be broken by then, and held by the next holder.
	err := repeat(ctx, server.Retryable, func() (err error) {
		broke, err = affected(ctx, s.db.Pool(), s.release, s.name)
		return err
	})
	return broke > 0, explain("break", s.name, err)
}

// drop releases the lock if this attempt has it. doubt means that an earlier statement may have released it, whose answer was
// lost.
func (s *simple) drop(ctx context.Context, taker string) (dropped, doubt bool, err error) {
	err = again(ctx, func() error {
		n, err := affected(ctx, s.db.Pool(), s.release+" AND taker = ?", s.name, taker)
		dropped, doubt = n > 0, doubt || server.ConnectionLost(err)
		return err
	})
	return dropped, doubt, err
}

type heldSimple struct {
	grip
	mutex *simple
	taker string

	mu       sync.Mutex
	released bool
	doubt    bool // a Release that failed may have released the lock
}

func (h *heldSimple) Release(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released || h.Err() != nil {
		return h.Err()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answer)
	defer cancel()
	dropped, doubt, err := h.mutex.drop(ctx, h.taker)
	h.doubt = h.doubt || doubt
	if err != nil {
		return explain("release", h.name, err)
	}
	h.released = true
	if !dropped && !h.doubt {
		h.lose(errNotOurs)
	}
	return h.Err()
}
