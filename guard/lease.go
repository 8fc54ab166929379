package guard

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// answer is how long a release may take.
const answer = 10 * time.Second

// LockOptions are the settings of a Lease or an Advisory.
type LockOptions struct {
	// TTL is how long the lease lasts after it was taken or renewed, by the server's
	// clock: how long others wait when the holder dies. A Lease needs it, 50 ms or more;
	// some ten times what a statement may take at the worst is a good value.
	TTL time.Duration
	// Margin is how much sooner the holder counts the lease as lost, for clocks that
	// run at different speeds, and to have stopped before another one begins. 0 means a
	// sixth of TTL; half of TTL is the most.
	Margin time.Duration
}

// Lease is a mutex in a table that expires. It needs no connection while it is held:
// the process that took it may end, and another one resume or release it with its
// token. The token is a fencing token: each taking has a larger one.
//
// Time is the server's alone. A holder measures how long it may trust the lease from
// the moment before it asked for it, with a clock of its own that only has to run at
// the right speed; what the time is it never asks its machine.
//
// Safe for concurrent use.
type Lease struct {
	db          *notify.DB
	name        string
	ttl, margin time.Duration
}

// NewLease is the lease of a name of 1 to 255 characters, in a table that `mqnotify
// init` makes.
func NewLease(db *notify.DB, name string, options LockOptions) (*Lease, error) {
	if err := checkName("name", name); err != nil {
		return nil, err
	}
	if err := checkTime("a lease's TTL", options.TTL, 50*time.Millisecond); err != nil {
		return nil, err
	}
	margin := options.Margin
	if margin == 0 {
		margin = options.TTL / 6
	}
	if margin < 0 || margin > options.TTL/2 {
		return nil, wrongf("a lease's Margin of %v, with a TTL of %v: give half of the TTL at most, or 0 for a sixth", margin, options.TTL)
	}
	return &Lease{db, name, options.TTL, margin}, nil
}

// TryLock implements Mutex. The lease is renewed in the background, a third of TTL
// after the last time, until Release or its loss.
func (l *Lease) TryLock(ctx context.Context) (Held, error) {
	start, token, err := l.take(ctx)
	if err != nil {
		return nil, err
	}
	return l.hold(start, token), nil
}

// Lock implements Mutex. It tries again and again, with waits of 5 to 250 ms. Waiters
// have no order.
func (l *Lease) Lock(ctx context.Context) (Held, error) { return persist(ctx, l.TryLock) }

// Take takes the lease for TTL and returns its token, which is all that is needed to
// Resume or Release it, in another process too. Nothing renews it. notify.ErrNotAcquired says
// that it is held. After another error it may be taken, until it expires; when ctx
// ends in the middle Take tries for a second to take that back.
//
// When Take loses its connection it sends the statement again over another one. The server
// may still run the first statement after Take has returned. If the lease is free then, it
// is held until it expires, by no process.
func (l *Lease) Take(ctx context.Context) (token uint64, err error) {
	_, token, err = l.take(ctx)
	return token, err
}

// take also tells when the attempt that got it began.
func (l *Lease) take(ctx context.Context) (start time.Time, token uint64, err error) {
	taker := newTaker()
	err = again(ctx, func() (err error) {
		start = time.Now()
		token, err = l.takeAs(ctx, taker)
		return err
	})
	if err != nil && ctx.Err() != nil {
		l.undo(ctx, taker)
	}
	return start, token, explain("lease", l.name, err)
}

// takeAs is one attempt of the taker with this mark.
func (l *Lease) takeAs(ctx context.Context, taker string) (token uint64, err error) {
	ttl := microseconds(l.ttl)
	result, err := l.db.Pool().ExecContext(ctx, takeLease, l.name, taker, ttl, taker, taker, taker, ttl)
	if err != nil {
		return 0, err
	}
	// The insert id: the token, or 0 if it is held. Not the count of rows; see everyQuery.
	id, err := result.LastInsertId()
	if err == nil && id == 0 {
		err = notify.ErrNotAcquired
	}
	return uint64(id), err
}

// undo releases what an attempt that was given up may have taken, so that other processes
// need not wait until it expires.
func (l *Lease) undo(ctx context.Context, taker string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
	defer cancel()
	_, _ = affected(ctx, l.db.Pool(), "UPDATE "+schema.LeaseTable+
		" SET expires_at = NULL WHERE name = ? AND taker = ? AND expires_at > UTC_TIMESTAMP(6)", l.name, taker)
}

// takeLease takes a lease that is new, free or expired, in one statement. An attempt that
// holds the lease already gets the same token again, because its first answer was lost.
// So the token that the taker was told stays valid if one of its statements runs late.
// expires_at is assigned last, because the other assignments read its old value.
const (
	fromNow   = "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND"
	free      = "expires_at IS NULL OR expires_at <= UTC_TIMESTAMP(6)"
	takeLease = "INSERT INTO " + schema.LeaseTable + " (name, token, taker, taken_at, expires_at)" +
		" VALUES (?, LAST_INSERT_ID(1), ?, UTC_TIMESTAMP(6), " + fromNow + ")" +
		" ON DUPLICATE KEY UPDATE" +
		" token = IF(" + free + ", LAST_INSERT_ID(token + 1), token + LAST_INSERT_ID(IF(taker = ?, token, 0)) * 0)," +
		" taken_at = IF(" + free + ", UTC_TIMESTAMP(6), taken_at)," +
		" taker = IF(" + free + ", ?, taker)," +
		" expires_at = IF(taker = ?, GREATEST(COALESCE(expires_at, UTC_TIMESTAMP(6)), " + fromNow + "), expires_at)"
)

// held is the part of a WHERE that says that a token holds its lease.
const held = " WHERE name = ? AND token = ? AND expires_at > UTC_TIMESTAMP(6)"

// Resume goes on with a lease that was taken before, by this process or another one:
// it renews it, and has it renewed in the background from then on. One process at a
// time should. A *TokenError says that the token does not hold it.
func (l *Lease) Resume(ctx context.Context, token uint64) (Held, error) {
	var start time.Time
	err := again(ctx, func() error {
		start = time.Now()
		return l.renew(ctx, token)
	})
	if err != nil {
		return nil, explain("resume", l.name, err)
	}
	return l.hold(start, token), nil
}

// renew makes the lease last for TTL from now. It never makes the lease shorter, because the
// statement of a lost connection may run after the one that was sent in its place.
func (l *Lease) renew(ctx context.Context, token uint64) error {
	// The count changes even where the time does not: what is found is changed.
	renewed, err := affected(ctx, l.db.Pool(), "UPDATE "+schema.LeaseTable+
		" SET expires_at = GREATEST(expires_at, "+fromNow+"), renewals = renewals + 1"+held,
		microseconds(l.ttl), l.name, token)
	if err != nil || renewed > 0 {
		return err
	}
	return l.refused(ctx, l.db.Pool(), token)
}

// refused says why a token was refused.
func (l *Lease) refused(ctx context.Context, q notify.Tx, token uint64) error {
	wrong := &TokenError{Name: l.name, Token: token}
	// Not what a transaction's snapshot shows, which may be older.
	row := q.QueryRowContext(ctx, "SELECT token, COALESCE(expires_at > UTC_TIMESTAMP(6), FALSE) FROM "+
		schema.LeaseTable+" WHERE name = ? LOCK IN SHARE MODE", l.name)
	if err := row.Scan(&wrong.Current, &wrong.Held); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	return wrong
}

// Release lets a lease go that was taken with the token, in whatever process; others
// can take it at once. A *TokenError says that the token does not hold
// it: it has expired, was released, or the token is another taker's. The owner of a Held
// calls Held.Release instead.
func (l *Lease) Release(ctx context.Context, token uint64) error {
	return explain("release", l.name, l.release(ctx, token, time.Time{}))
}

// release lets the lease go. Until trusted it is known to be held: what is found
// released then was released by this very call, whose answer was lost.
func (l *Lease) release(ctx context.Context, token uint64, trusted time.Time) error {
	sure := time.Now().Before(trusted)
	doubt := false
	return again(ctx, func() error {
		released, err := affected(ctx, l.db.Pool(), "UPDATE "+schema.LeaseTable+" SET expires_at = NULL"+held, l.name, token)
		ours := sure && doubt
		if err == nil && released == 0 && !ours {
			return l.refused(ctx, l.db.Pool(), token)
		}
		doubt = doubt || server.ConnectionLost(err)
		return err
	})
}

// Fence makes the caller's transaction depend on the lease: it changes the lease's row,
// and no process can take the lease, or renew it, before the transaction ends. So what the
// transaction commits was done by the lease's one holder, whatever its clock, its
// network, or the time that it was stopped for. Call it just before the commit, since it
// holds up renewals. A *TokenError says that the token does not hold the
// lease; the caller rolls back.
//
// Begin the transaction READ COMMITTED: under REPEATABLE READ MariaDB since 11.6.2
// (innodb_snapshot_isolation) refuses it, with error 1020, once the lease was renewed after
// the transaction's first read.
//
// On Galera, or a group with several primaries, others can take the lease on another
// server meanwhile. What is committed later is refused there: this transaction, at its
// commit, or that.
func (l *Lease) Fence(ctx context.Context, tx notify.Tx, token uint64) error {
	if err := checkTx(tx); err != nil {
		return err
	}
	// A row that is only locked is known to this server alone: a change is sent to others.
	found, err := affected(ctx, tx, "UPDATE "+schema.LeaseTable+" SET renewals = renewals + 1"+held, l.name, token)
	if err == nil && found == 0 {
		err = l.refused(ctx, tx, token)
	}
	return explain("fence", l.name, err)
}

// LeaseStatus is what the server knows of a lease.
type LeaseStatus struct {
	Held  bool
	Token uint64        // of the last holder; 0 if it was never taken
	For   time.Duration // since it was taken, if it is held
	Left  time.Duration // until it expires, if it is held
}

// Status asks the server about the lease.
func (l *Lease) Status(ctx context.Context) (LeaseStatus, error) {
	var s LeaseStatus
	err := again(ctx, func() error {
		s = LeaseStatus{}
		var age, left int64
		err := l.db.Pool().QueryRowxContext(ctx, "SELECT token, COALESCE(expires_at > UTC_TIMESTAMP(6), FALSE),"+
			" TIMESTAMPDIFF(MICROSECOND, taken_at, UTC_TIMESTAMP(6)),"+
			" COALESCE(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at), 0) FROM "+
			schema.LeaseTable+" WHERE name = ?", l.name).Scan(&s.Token, &s.Held, &age, &left)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if s.Held {
			// It may have been taken after the time that the statement began with.
			s.For, s.Left = max(0, time.Duration(age)*time.Microsecond), time.Duration(left)*time.Microsecond
		}
		return err
	})
	return s, explain("ask for lease", l.name, err)
}
