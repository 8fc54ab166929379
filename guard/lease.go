package guard

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// answer bounds a release.
const answer = 10 * time.Second

// lease is a row that expires. Every holder has a larger token than all before.
//
// Only the server's clock determines the time. A holder measures how long it may trust the lease from
// the moment before it asked for it. Its own clock only has to run at
// the right speed; it never has to show the right time.
type lease struct {
	db          *notify.DB
	name        string
	ttl, margin time.Duration
}

func newLease(db *notify.DB, name string, options MutexOptions) (*lease, error) {
	options.TTL = cmp.Or(options.TTL, 30*time.Second)
	if err := checkTime("a lease's TTL", options.TTL, 50*time.Millisecond); err != nil {
		return nil, err
	}
	margin := cmp.Or(options.Margin, options.TTL/6)
	if margin < 0 || margin > options.TTL/2 {
		return nil, wrongf("a lease's Margin of %v, with a TTL of %v: give half of the TTL at most, or 0 for a sixth", margin, options.TTL)
	}
	return &lease{db, name, options.TTL, margin}, nil
}

// tryLock takes the lease. A goroutine renews it, a third of TTL
// after the last time, until Release or its loss.
func (l *lease) tryLock(ctx context.Context) (Held, error) {
	start, token, err := l.take(ctx)
	if err != nil {
		return nil, err
	}
	return l.hold(start, token), nil
}

func (l *lease) await(ctx context.Context) (Held, error) { return persist(ctx, l.tryLock) }

// take takes the lease for TTL, and also returns when the successful attempt began.
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

// takeAs makes one attempt with the mark taker.
func (l *lease) takeAs(ctx context.Context, taker string) (token uint64, err error) {
	ttl := microseconds(l.ttl)
	result, err := l.db.Pool().ExecContext(ctx, takeLease, l.name, taker, ttl, taker, taker, taker, ttl)
	if err != nil {
		return 0, err
	}
	// The insert id is the token, or 0 if the lease is held. The count of rows does not show that; see everyQuery.
	id, err := result.LastInsertId()
	if err == nil && id == 0 {
		err = notify.ErrNotAcquired
	}
	return uint64(id), err
}

// undo releases the lease if an abandoned attempt has taken it, so that other processes
// need not wait until it expires.
func (l *lease) undo(ctx context.Context, taker string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
	defer cancel()
	_, _ = affected(ctx, l.db.Pool(), "UPDATE "+schema.LeaseTable+
		" SET expires_at = NULL WHERE name = ? AND taker = ? AND expires_at > UTC_TIMESTAMP(6)", l.name, taker)
}

// takeLease takes a lease that is new, free or expired, in one statement. If an attempt already
// holds the lease, because its first answer was lost, it gets the same token again.
// The token that the caller has therefore stays valid even if one of its statements runs late.
// expires_at is assigned last, because the other assignments read its old value. With MariaDB's SIMULTANEOUS_ASSIGNMENT it reads the
// old taker.
const (
	fromNow   = "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND"
	free      = "expires_at IS NULL OR expires_at <= UTC_TIMESTAMP(6)"
	takeLease = "INSERT INTO " + schema.LeaseTable + " (name, token, taker, taken_at, expires_at)" +
		" VALUES (?, LAST_INSERT_ID(1), ?, UTC_TIMESTAMP(6), " + fromNow + ")" +
		" ON DUPLICATE KEY UPDATE" +
		" token = IF(" + free + ", LAST_INSERT_ID(token + 1), token + LAST_INSERT_ID(IF(taker = ?, token, 0)) * 0)," +
		" taken_at = IF(" + free + ", UTC_TIMESTAMP(6), taken_at)," +
		" taker = IF(" + free + ", ?, taker)," +
		" expires_at = IF(" + free + " OR taker = ?, GREATEST(COALESCE(expires_at, UTC_TIMESTAMP(6)), " + fromNow + "), expires_at)"
)

// held is the WHERE of a statement that requires that a token holds its lease.
const held = " WHERE name = ? AND token = ? AND expires_at > UTC_TIMESTAMP(6)"

// resume renews the lease, and then keeps it renewed in a goroutine.
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
// statement of a lost connection may run after its repetition.
func (l *lease) renew(ctx context.Context, token uint64) error {
	// renewals also changes, so that a found row always counts as affected.
	renewed, err := affected(ctx, l.db.Pool(), "UPDATE "+schema.LeaseTable+
		" SET expires_at = GREATEST(expires_at, "+fromNow+"), renewals = renewals + 1"+held,
		microseconds(l.ttl), l.name, token)
	if err != nil || renewed > 0 {
		return err
	}
	return l.refused(ctx, l.db.Pool(), token)
}

// refused returns the reason why a token was refused.
func (l *lease) refused(ctx context.Context, q notify.Tx, token uint64) error {
	wrong := &TokenError{Name: l.name, Token: token}
	// A locking read, because a transaction's snapshot may be older.
	row := q.QueryRowContext(ctx, "SELECT token, COALESCE(expires_at > UTC_TIMESTAMP(6), FALSE) FROM "+
		schema.LeaseTable+" WHERE name = ? LOCK IN SHARE MODE", l.name)
	if err := row.Scan(&wrong.Current, &wrong.Held); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	return wrong
}

// release releases the lease. The lease is known to be held until trusted: if it
// is found released before that time, an earlier statement of this call released it, whose answer was lost.
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
	// Change the row, because only this server knows a lock; a change reaches the others.
	found, err := affected(ctx, tx, "UPDATE "+schema.LeaseTable+" SET renewals = renewals + 1"+held, l.name, token)
	if err == nil && found == 0 {
		err = l.refused(ctx, tx, token)
	}
	return explain("fence", l.name, err)
}
