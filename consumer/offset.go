package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// errFenced means that another member took the group over, so this one can't move the offset any more. Run then stands by again.
var errFenced = errors.New("another member took the group over")

// ledger stores a member's progress, until another member sets the fence.
type ledger interface {
	// store writes the progress. It returns errFenced if another member has set the fence since.
	store(ctx context.Context, db notify.Tx, p position.Progress) error
	// storeOf writes at least the part of the progress that these messages concern; whole means that it wrote all of it.
	storeOf(ctx context.Context, db notify.Tx, p position.Progress, messages []Message) (whole bool, err error)
}

// offset is a group's row under the fence that this member has set.
type offset struct {
	topic, group string
	fence        uint64
}

// store implements ledger.
func (o *offset) store(ctx context.Context, db notify.Tx, p position.Progress) error {
	// The version changes at every store, so that the row always counts as affected, even if the driver counts only changed rows.
	result, err := db.ExecContext(ctx, "UPDATE "+schema.OffsetTable+
		" SET settled = ?, delivered = ?, version = version + 1 WHERE topic = ? AND group_name = ? AND fence = ?",
		p.Settled, p.Done.Encode(p.Settled), o.topic, o.group, o.fence)
	if err != nil {
		return stateError("store offset", err)
	}
	rows, err := result.RowsAffected()
	if err != nil {
		return fmt.Errorf("consumer: store offset: %w", err)
	}
	if rows != 1 {
		return fmt.Errorf("consumer: store offset of group %q: %w", o.group, errFenced)
	}
	return nil
}

func (o *offset) storeOf(ctx context.Context, db notify.Tx, p position.Progress, _ []Message) (whole bool, err error) {
	return true, o.store(ctx, db, p)
}

// stateError wraps the error of a statement on mqnotify's own tables.
func stateError(verb string, err error) error {
	switch {
	case server.Is(err, server.ErrNoSuchTable):
		err = notify.ErrNoState
	case server.ReadOnly(err):
		err = fmt.Errorf("%w: connect to its primary, or read without a group: %w", notify.ErrReadOnly, err)
	case server.NoPrivilege(err):
		err = fmt.Errorf("%w: `mqnotify grants` shows what the account needs: %w", notify.ErrDenied, err)
	}
	return fmt.Errorf("consumer: %s: %w", verb, err)
}

// claim inserts the group's row with the progress that start returns, or overwrites the row with it if reset is set. An existing row
// stays otherwise. claim then sets the fence and returns the stored progress.
func claim(ctx context.Context, db *notify.DB, topic, group, member string, reset bool, start func() (position.Progress, error)) (*offset, position.Progress, error) {
	row, err := readGroup(ctx, db.Pool(), topic, group)
	if err != nil {
		return nil, position.Progress{}, err
	}
	if _, shared, _ := decodeSharing(topic, group, row.Delivered); shared {
		return nil, position.Progress{}, fmt.Errorf("consumer: the members of group %q share it: set MembersShare (--members-share): %w", group, notify.ErrOptions)
	}
	if len(row.Delivered) == 0 || reset {
		p, err := start()
		if err != nil {
			return nil, position.Progress{}, err
		}
		onDuplicate := "version = version" // another member has inserted it
		if reset {
			onDuplicate = "settled = VALUES(settled), delivered = VALUES(delivered), version = version + 1"
		}
		_, err = db.Pool().ExecContext(ctx, "INSERT INTO "+schema.OffsetTable+
			" (topic, group_name, settled, delivered, fence, version, member) VALUES (?, ?, ?, ?, 0, 0, ?)"+
			" ON DUPLICATE KEY UPDATE "+onDuplicate,
			topic, group, p.Settled, p.Done.Encode(p.Settled), member)
		if err != nil {
			return nil, position.Progress{}, stateError("make offset", err)
		}
	}
	return takeFence(ctx, db, topic, group, member)
}

// takeFence sets a fence that no member had before, and then reads the progress, which no member with an older fence can change.
func takeFence(ctx context.Context, db *notify.DB, topic, group, member string) (_ *offset, p position.Progress, err error) {
	tx, err := db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return nil, p, stateError("take fence", err)
	}
	defer func() { _ = tx.Rollback() }()
	// UUID_SHORT and not a counter, which would reach the same number again after the row was deleted.
	_, err = tx.ExecContext(ctx, "UPDATE "+schema.OffsetTable+
		" SET fence = UUID_SHORT(), version = version + 1, member = ? WHERE topic = ? AND group_name = ?", member, topic, group)
	if err != nil {
		return nil, p, stateError("take fence", err)
	}
	var row struct {
		Settled   uint64
		Delivered []byte
		Fence     uint64
	}
	err = tx.GetContext(ctx, &row, "SELECT settled, delivered, fence FROM "+schema.OffsetTable+
		" WHERE topic = ? AND group_name = ?", topic, group)
	if errors.Is(err, sql.ErrNoRows) { // deleted just now
		return nil, p, fmt.Errorf("consumer: take fence of group %q: %w", group, errFenced)
	}
	if err != nil {
		return nil, p, stateError("take fence", err)
	}
	p.Settled = row.Settled
	if p.Done, err = position.Decode(row.Delivered, row.Settled); err != nil {
		return nil, p, fmt.Errorf("consumer: offset of group %q: %w", group, err)
	}
	if err := tx.Commit(); err != nil {
		return nil, p, stateError("take fence", err)
	}
	return &offset{topic, group, row.Fence}, p, nil
}
