package guard

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

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
//     while the lease is still held: nobody else has begun meanwhile.
//
// When the process dies in Call the lease expires and the next one begins anew. Whether
// the call reached the other side nobody knows then: give it a key by which that side
// knows a repetition, such as the row's.
type TwoStep struct {
	// Begin and Finish may run again after a deadlock, like LockRow's function. Begin
	// may be nil.
	Begin, Finish func(ctx context.Context, tx *sqlx.Tx) error
	// Call's ctx ends when the lease is lost.
	Call func(ctx context.Context) error
}

// Do takes the lease of the row, runs the steps and releases it. ErrNotAcquired says
// that somebody else is at it, ErrLockLost that Call took place and Finish did not, or
// was rolled back; the others are LockRow's and those of the steps.
func (s TwoStep) Do(ctx context.Context, db *notify.DB, row RowRef, options LeaseOptions) error {
	if s.Call == nil || s.Finish == nil {
		return wrongf("a TwoStep without Call or Finish: give both")
	}
	lease, err := NewLease(db, rowLease(row), options)
	if err != nil {
		return err
	}
	held, err := lease.TryLock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = held.Release(ctx) }() // it expires otherwise
	working, cancel := held.Context(ctx)
	defer cancel()
	if s.Begin != nil {
		if err := LockRow(working, db, row, RowOptions{}, s.Begin); err != nil {
			return err
		}
	}
	if err := s.Call(working); err != nil {
		return err
	}
	err = LockRow(working, db, row, RowOptions{}, func(ctx context.Context, tx *sqlx.Tx) error {
		if err := s.Finish(ctx, tx); err != nil {
			return err
		}
		return lease.Fence(ctx, tx, held.Token())
	})
	if errors.Is(err, ErrNotHolder) {
		return fmt.Errorf("%w: %w", ErrLockLost, err)
	}
	return err
}

// rowLease is the name of a row's lease, or a hash of it if it is too long.
func rowLease(r RowRef) string {
	name := "row " + r.String()
	if checkName("name", name) == nil {
		return name
	}
	return fmt.Sprintf("row %x", sha256.Sum256([]byte(name)))
}
