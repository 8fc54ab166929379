package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/notify"
)

// TwoStep is a row lock for work that calls a service outside the database, such as a
// payment service or a mail server. Inside a transaction such a call would keep the row
// and a connection locked for as long as it takes, and it is not undone when the
// transaction is rolled back or repeated after a deadlock. Instead
//
//  1. Begin runs in a short transaction that holds the row. It reads what the call needs.
//  2. Call runs once, outside any transaction, under a lease on the row.
//  3. Finish runs in a second short transaction that holds the row. It commits only
//     if the lease is still held, so that no other TwoStep has begun in the meantime.
//
// If the process dies in Call, the lease expires and the next TwoStep begins with Begin.
// It is then unknown whether the call reached the service: give the call a key by which
// the service recognises a repetition, such as the row's.
type TwoStep struct {
	// Begin and Finish may run again after a deadlock, like LockRow's function. Begin
	// may be nil.
	Begin, Finish func(ctx context.Context, tx *sqlx.Tx) error
	// Call gets a ctx that ends when the lease is lost.
	Call func(ctx context.Context) error
	// TTL and Margin are those of the lease; see MutexOptions. 0 means 30 s, and a sixth of TTL.
	TTL, Margin time.Duration
}

// Do takes the lease of the row, runs the steps and releases the lease. notify.ErrNotAcquired means
// that another TwoStep has the row, or that the lease was lost before Call ran. notify.ErrLockLost means that Call ran, and that Finish did not run
// or was rolled back. The other errors are those of LockRow and of the steps.
//
// The lease belongs to the row, not to the key. Two spellings that the column takes for the same value, such as 7 and "07",
// and two unique columns of a row share one lease. Its name contains the
// primary key, or, in a table without one, the value that is stored in Key; there all callers must
// use the same column. If the row's primary key changes during Call, or if the row
// is deleted and inserted again, it is another row: Finish does not run, and the error is notify.ErrLockLost.
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
	defer func() { _ = held.Release(ctx) }() // after an error the lease expires
	working, cancel := held.Context(ctx)
	defer cancel()
	// step runs a step in a transaction, if the key still names the lease's row.
	step := func(moved error, f func(ctx context.Context, tx *sqlx.Tx) error) error {
		return at.lock(working, db, 0, func(ctx context.Context, tx *sqlx.Tx, now string) error {
			if now != id {
				return explain("lock row", row.text(), fmt.Errorf("%w: the key names another row now", moved))
			}
			return f(ctx, tx)
		})
	}
	if s.Begin != nil {
		err := step(notify.ErrNotAcquired, s.Begin)
		if errors.Is(err, notify.ErrLockLost) { // which would mean that Call ran
			return explain("lock row", row.text(), fmt.Errorf("%w: the lease was lost before Call ran", notify.ErrNotAcquired))
		}
		if err != nil {
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
	switch {
	case notHolder(err):
		return fmt.Errorf("%w: %w", notify.ErrLockLost, err)
	case errors.Is(err, notify.ErrNotAcquired): // which would mean that Call did not run
		return fmt.Errorf("%w: after Call: %v", notify.ErrLockLost, err) //nolint:errorlint // not to wrap it
	}
	return err
}
