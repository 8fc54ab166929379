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

// lease is a row that expires. Each taking has a larger token.
//
// Time is the server's alone. A holder measures how long it may trust the lease from
// the moment before it asked for it, with a clock of its own that only has to run at
// the right speed; what the time is it never asks its machine.
type lease struct {
	db          *notify.DB
	name        string
	ttl, margin time.Duration
}

func newLease(db *notify.DB, name string, options MutexOptions) (*lease, error) {
	if options.TTL == 0 {
		options.TTL = 30 * time.Second
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
	return &lease{db, name, options.TTL, margin}, nil
}

// tryLock takes the lease. It is renewed in the background, a third of TTL
// after the last time, until Release or its loss.
func (l *lease) tryLock(ctx context.Context) (Held, error) {
	start, token, err := l.take(ctx)
	if err != nil {
		return nil, err
	}
	return l.hold(start, token), nil
}

func (l *lease) await(ctx context.Context) (Held, error) { return persist(ctx, l.tryLock) }

// take takes the lease for TTL, and also tells when the attempt that got it began.
func (l *lease) take(ctx context.Context) (start time.Time, token uint64, err error) {
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
func (l *lease) takeAs(ctx context.Context, taker string) (token uint64, err error) {
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
func (l *lease) undo(ctx context.Context, taker string) {
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

// resume renews the lease, and has it renewed in the background from then on.
func (l *lease) resume(ctx context.Context, token uint64) (Held, error) {
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
func (l *lease) renew(ctx context.Context, token uint64) error {
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
func (l *lease) refused(ctx context.Context, q notify.Tx, token uint64) error {
	wrong := &TokenError{Name: l.name, Token: token}
	// Not what a transaction's snapshot shows, which may be older.
	row := q.QueryRowContext(ctx, "SELECT token, COALESCE(expires_at > UTC_TIMESTAMP(6), FALSE) FROM "+
		schema.LeaseTable+" WHERE name = ? LOCK IN SHARE MODE", l.name)
	if err := row.Scan(&wrong.Current, &wrong.Held); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	return wrong
}

// release lets the lease go. Until trusted it is known to be held: what is found
// released then was released by this very call, whose answer was lost.
func (l *lease) release(ctx context.Context, token uint64, trusted time.Time) error {
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

// fence changes the lease's row in the caller's transaction, if the token holds the lease.
func (l *lease) fence(ctx context.Context, tx notify.Tx, token uint64) error {
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
