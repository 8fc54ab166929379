package guard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// Claims gives each key to one claimant, by INSERT into a UNIQUE column. A claim can
// follow another one: its row names its predecessor under UNIQUE and FOREIGN KEY, so
// that every claim has at most one successor, however often the next step is triggered. Keys are
// strings of 1 to 255 characters. Safe for concurrent use.
//
// A claim lasts until Forget deletes it. For rows that exist beforehand Once is easier
// to inspect, because the table also shows which rows are still open.
type Claims struct{ db *notify.DB }

// NewClaims returns Claims in the table that `mqnotify init` creates. It does not connect.
func NewClaims(db *notify.DB) *Claims { return &Claims{db} }

// Claim claims key and reports whether the caller got it: true for one of all callers.
// After an error no caller may act, because the key may be claimed.
func (c *Claims) Claim(ctx context.Context, key string) (bool, error) {
	return c.claim(ctx, key, nil)
}

// Follow claims key as the successor of the claim of previous. It reports true for one of all
// callers, and false for all if another key already follows previous.
// ErrNoRow means that previous is not claimed; notify.ErrOptions that it equals key.
func (c *Claims) Follow(ctx context.Context, previous, key string) (bool, error) {
	if err := checkStep(previous, key); err != nil {
		return false, err
	}
	return c.claim(ctx, key, previous)
}

// checkStep refuses a key that follows itself, because InnoDB accepts a row that references itself, although the
// predecessor was not claimed before. The comparison is byte by byte, as in the column.
func checkStep(previous, key string) error {
	if previous == key {
		return wrongf("key %s follows itself: give each step a key of its own", shown(key))
	}
	return checkName("key", previous)
}

func (c *Claims) claim(ctx context.Context, key string, follows any) (bool, error) {
	if err := checkName("key", key); err != nil {
		return false, err
	}
	taker := newTaker()
	var ours bool
	err := again(ctx, func() (err error) {
		ours, err = c.insert(ctx, c.db.Pool(), key, follows, taker)
		if err != nil || ours {
			return err
		}
		// Find out whether the claim is this attempt's, whose answer was lost.
		var by string
		err = c.db.Pool().GetContext(ctx, &by, "SELECT taker FROM "+schema.ClaimTable+" WHERE claim_key = ?", key)
		if errors.Is(err, sql.ErrNoRows) { // another key follows previous, or the claim was forgotten in the meantime
			return nil
		}
		ours = by == taker
		return err
	})
	return ours && err == nil, explain("claim", key, err)
}

// ClaimTx is Claim inside a transaction of the caller. The claim counts when the transaction commits.
// Other callers that claim the key in the meantime wait for its end. After an error the caller
// rolls back.
func (c *Claims) ClaimTx(ctx context.Context, tx notify.Tx, key string) (bool, error) {
	return c.claimTx(ctx, tx, key, nil)
}

// FollowTx is Follow inside a transaction of the caller, as ClaimTx is Claim. The
// transaction commits the claim together with the work of the step.
func (c *Claims) FollowTx(ctx context.Context, tx notify.Tx, previous, key string) (bool, error) {
	if err := checkStep(previous, key); err != nil {
		return false, err
	}
	return c.claimTx(ctx, tx, key, previous)
}

func (c *Claims) claimTx(ctx context.Context, tx notify.Tx, key string, follows any) (bool, error) {
	if err := checkName("key", key); err != nil {
		return false, err
	}
	if err := checkTx(tx); err != nil {
		return false, err
	}
	ours, err := c.insert(ctx, tx, key, follows, newTaker())
	return ours, explain("claim", key, err)
}

func (c *Claims) insert(ctx context.Context, q notify.Tx, key string, follows any, taker string) (bool, error) {
	_, err := q.ExecContext(ctx, "INSERT INTO "+schema.ClaimTable+
		" (claim_key, follows, taker, claimed_at) VALUES (?, ?, ?, UTC_TIMESTAMP(6))", key, follows, taker)
	switch {
	case server.Is(err, server.ErrDuplicate):
		return false, nil
	case server.Is(err, server.ErrNoReferencedRow):
		return false, fmt.Errorf("the key that it follows was not claimed: %w: %w", ErrNoRow, err)
	}
	return err == nil, err
}

// Next returns the key that follows the claim of key, or "" if there is none yet. ErrNoRow
// means that key is not claimed.
func (c *Claims) Next(ctx context.Context, key string) (string, error) {
	var next sql.NullString
	err := again(ctx, func() error {
		return c.db.Pool().GetContext(ctx, &next, "SELECT n.claim_key FROM "+schema.ClaimTable+" c LEFT JOIN "+schema.ClaimTable+
			" n ON n.follows = c.claim_key WHERE c.claim_key = ?", key)
	})
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNoRow
	}
	return next.String, explain("what follows", key, err)
}

// Forget deletes a claim, so that its key can be claimed again, and reports whether the
// claim existed. Claims that follow it must be forgotten first. If the connection
// is lost, Forget returns an error; the claim may then be deleted, and a new one may exist.
func (c *Claims) Forget(ctx context.Context, key string) (bool, error) {
	var deleted int64
	// Do not repeat it after a lost connection, because the row may be the next claim by then.
	err := repeat(ctx, server.Retryable, func() (err error) {
		deleted, err = affected(ctx, c.db.Pool(), "DELETE FROM "+schema.ClaimTable+" WHERE claim_key = ?", key)
		return err
	})
	return deleted > 0, explain("forget", key, err)
}
