package guard

import (
	"context"
	"time"
)

// Abandon ends a lease's renewals without a release, as the death of its process does.
func Abandon(h Held) {
	lease := h.(*heldLease)
	lease.stop()
	<-lease.done
}

// Renew is Resume without renewals in the background.
func Renew(ctx context.Context, m *Mutex, token uint64) error {
	l := m.kind.(*lease)
	return explain("renew", l.name, again(ctx, func() error { return l.renew(ctx, token) }))
}

// TakeAs takes the lease with the mark of one attempt. Several calls act like the repeated statements of an
// attempt whose connections are lost.
func TakeAs(ctx context.Context, m *Mutex, attempt string) (uint64, error) {
	return m.kind.(*lease).takeAs(ctx, attempt)
}

// Retried is how many statements and transactions of this process were repeated.
func Retried() uint64 { return retried.Load() }

// SetUndoing changes how long a statement that takes a lock may continue after its context has ended. Call it before any test.
func SetUndoing(d time.Duration) { undoing = d }
