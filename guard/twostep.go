package guard

import (
	"context"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/notify"
)

// TwoStep is a row lock for work that calls something outside the database, such as a
// payment service or a mail server. Inside a transaction such a call keeps the row
// locked, and a connection, for as long as it takes; and it is not undone when the
// transaction is rolled back or run again after a deadlock. Instead
//
//  1. Begin runs in a short transaction that holds the row: it reads what the call needs,
//  2. Call runs in none, under a lease on the row, once,
//  3. Finish runs in a second short transaction that holds the row, and commits only
//     while the lease is still held: no other TwoStep has begun meanwhile.
//
// When the process dies in Call the lease expires and the next TwoStep begins with Begin.
// Whether the call reached the other side is unknown then: give the call a key by which
// that side recognises a repetition, such as the row's.
type TwoStep struct {
	// Begin and Finish may run again after a deadlock, like LockRow's function. Begin
	// may be nil.
	Begin, Finish func(ctx context.Context, tx *sqlx.Tx) error
	// Call's ctx ends when the lease is lost.
	Call func(ctx context.Context) error
	// TTL and Margin are those of the lease; see MutexOptions. 0 means 30 s, and a sixth of TTL.
	TTL, Margin time.Duration
}

// Do takes the lease of the row, runs the steps and releases it. notify.ErrNotAcquired says
// that another TwoStep has the row, notify.ErrLockLost that Call took place and Finish did not,
// or was rolled back; the other errors are those of LockRow and of the steps.
//
// The lease is the row's, not the key's: 7 and "07", two spellings that the column takes
// for the same, and two unique columns name one row, and one lease. It goes by the
// primary key; in a table that has none, by the value that is stored in Key, so that all
// name the same column there. A row whose primary key is changed during Call, or that
// is deleted and made again, is another row: Finish does not run, with notify.ErrLockLost.
func (s TwoStep) Do(ctx context.Context, db *notify.DB, row RowRef) error {
	if s.Call == nil || s.Finish == nil {
		return wrongf("a TwoStep without Call or Finish: give both")
	}
	lease, err := newLease(db, "row", MutexOptions{TTL: s.TTL, Margin: s.Margin})
	if err != nil {
		return err
	}
	at, err := row.find(ctx, db)
	if err != nil {
		return err
	}
	id, err := at.identify(ctx, db)
	if err != nil {
		return err
	}
	lease.name = at.leaseName(id)
	held, err := lease.tryLock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = held.Release(ctx) }() // it expires otherwise
	working, cancel := held.Context(ctx)
	defer cancel()
	// step runs one in a transaction, if the row that the key names is still the lease's.
	step := func(moved error, f func(ctx context.Context, tx *sqlx.Tx) error) error {
		return at.lock(working, db, 0, func(ctx context.Context, tx *sqlx.Tx, now string) error {
			if now != id {
				return explain("lock row", row.text(), fmt.Errorf("%w: the key names another row now", moved))
			}
			return f(ctx, tx)
		})
	}
	if s.Begin != nil {
		if err := step(notify.ErrNotAcquired, s.Begin); err != nil {
			return err
		}
	}
	if err := s.Call(working); err != nil {
		return err
	}
	err = step(notify.ErrLockLost, func(ctx context.Context, tx *sqlx.Tx) error {
		if err := s.Finish(ctx, tx); err != nil {
			return err
		}
		return lease.fence(ctx, tx, held.Token())
	})
	if notHolder(err) {
		return fmt.Errorf("%w: %w", notify.ErrLockLost, err)
	}
	return err
}
