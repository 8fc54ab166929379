package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// snapshotTime bounds the statement that reads which sessions hold a group's locks.
const snapshotTime = 10 * time.Second

// member is a member of a shared group: its session and the locks that it holds. There are as many slots as partitions. A member
// holds the lock of one slot, and of each of its partitions. One member is the coordinator. It reads which sessions hold these locks.
// While the partitions are not shared fairly, it wakes the others, which wait for the coordinator's lock, by passing the lock once
// around. It decides nothing: every member takes its share by the same rule. The end of the coordinator wakes all members.
type member struct {
	sharing
	options Options
	session *core.Session
	prefix  string // the beginning of the locks' names

	slot        *core.Lock
	coordinator *core.Lock // nil unless this member is the coordinator
	granted     *core.Lock // the coordinator's lock, until a snapshot shows whether its old holder wants it back
	parts       map[int]*core.Lock

	polls backoff.BackOff // the coordinator's waits between two snapshots
	last  snapshot        // the coordinator's last one
	least uint64          // the watermark that the coordinator last stored for the group
}

func newMember(s sharing, session *core.Session, database string, options Options) *member {
	return &member{
		sharing: s, options: options, session: session,
		prefix: sharePrefix(database, s.topic, s.group), parts: make(map[int]*core.Lock),
		polls: &notify.Fibonacci{Min: 50 * time.Millisecond, Max: time.Second, Jitter: 0.1},
	}
}

// sharePrefix returns the beginning of the names of a group's locks. It contains a hash, because names are limited and the group's
// name may be long.
func sharePrefix(database, topic, group string) string {
	sum := sha256.Sum256([]byte(groupLock(database, topic, group)))
	return core.LockName("share", hex.EncodeToString(sum[:10])) + ":"
}

const (
	slotLock        = "member-"
	partitionLock   = "part-"
	coordinatorLock = "coordinator"
)

// snapshot is the sessions that hold the group's locks; 0 means that none holds the lock.
type snapshot struct {
	coordinator uint64
	slots       []uint64
	owners      []uint64 // of the partitions
	settled     uint64   // the smallest watermark of the partitions
}

// snapshot reads which sessions hold the locks, in one statement.
func (m *member) snapshot(ctx context.Context) (s snapshot, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), snapshotTime)
	defer cancel()
	err = m.session.Do(ctx, func(conn *sqlx.Conn) error {
		s, err = readSnapshot(ctx, conn, m.sharing, m.prefix)
		return err
	})
	if err != nil {
		return s, err
	}
	for part, lock := range m.parts {
		if s.owners[part] != m.session.ID() {
			return s, fmt.Errorf("consumer: partition %d of group %q (%s): %w", part, m.group, lock.Name(), notify.ErrLockLost)
		}
	}
	return s, nil
}

func readSnapshot(ctx context.Context, db sqlx.QueryerContext, of sharing, prefix string) (s snapshot, err error) {
	var rows []struct {
		Settled, Coordinator, Slot, Owner uint64
	}
	err = sqlx.SelectContext(ctx, db, &rows, "SELECT settled, COALESCE(IS_USED_LOCK(?), 0) AS coordinator,"+
		" COALESCE(IS_USED_LOCK(CONCAT(?, part)), 0) AS slot, COALESCE(IS_USED_LOCK(CONCAT(?, part)), 0) AS owner FROM "+schema.PartitionTable+
		" WHERE topic = ? AND group_name = ? AND part < ? ORDER BY part",
		prefix+coordinatorLock, prefix+slotLock, prefix+partitionLock, of.topic, of.group, of.parts)
	if err != nil {
		return s, stateError("read partitions", err)
	}
	if len(rows) != of.parts {
		return s, incomplete(of, len(rows))
	}
	s.settled, s.coordinator = rows[0].Settled, rows[0].Coordinator
	for _, row := range rows {
		s.slots, s.owners = append(s.slots, row.Slot), append(s.owners, row.Owner)
		s.settled = min(s.settled, row.Settled)
	}
	return s, nil
}

// incomplete is the error of a group that lacks partitions, for example because only a part of the tables was restored.
func incomplete(of sharing, parts int) error {
	return fmt.Errorf("consumer: group %q has %d of its %d partitions in %s: restore that table together with %s, or begin again with Reset (--reset): %w",
		of.group, parts, of.parts, schema.PartitionTable, schema.OffsetTable, position.ErrDamaged)
}

// fair returns how many partitions each member should have: the same number for all, or one more for the members in the first slots.
func (s snapshot) fair() map[uint64]int {
	members := slices.DeleteFunc(slices.Clone(s.slots), func(session uint64) bool { return session == 0 })
	fair := make(map[uint64]int, len(members))
	for i, session := range members {
		fair[session] = len(s.owners) / len(members)
		if i < len(s.owners)%len(members) {
			fair[session]++
		}
	}
	return fair
}

// shared reports whether every member has its fair share.
func (s snapshot) shared() bool {
	left := s.fair()
	for _, owner := range s.owners {
		left[owner]--
	}
	for _, n := range left {
		if n != 0 {
			return false
		}
	}
	return true
}

// enter returns when the member has a slot. While all slots are taken it stands by, and calls standsBy.
func (m *member) enter(ctx context.Context, standsBy func()) error {
	for told := false; ; told = true {
		s, err := m.snapshot(ctx)
		if err != nil {
			return err
		}
		for slot, taken := range s.slots {
			if taken != 0 {
				continue
			}
			lock, err := m.session.TryLock(ctx, m.prefix+slotLock+strconv.Itoa(slot))
			if err == nil {
				m.slot = lock
				return nil
			}
			if !errors.Is(err, notify.ErrNotAcquired) {
				return fmt.Errorf("consumer: join group %q: %w", m.group, err)
			}
		}
		if !told {
			standsBy()
			m.options.Logger.InfoContext(ctx, "standing by: the group has a member for each partition", "partitions", m.sharing.parts)
		}
		lock, err := m.session.Lock(ctx, m.prefix+coordinatorLock, standby)
		if err == nil {
			err = lock.Release(ctx)
		}
		if err != nil && !errors.Is(err, notify.ErrNotAcquired) {
			return fmt.Errorf("consumer: join group %q: %w", m.group, err)
		}
	}
}

// settleCoordinator keeps the coordinator's lock, or releases it if its old holder is alive and only passed it to wake the others.
func (m *member) settleCoordinator(ctx context.Context, s snapshot) error {
	lock := m.granted
	if lock == nil {
		return nil
	}
	m.granted = nil
	if before := m.last.coordinator; before != 0 && before != m.session.ID() && slices.Contains(s.slots, before) {
		return lock.Release(ctx)
	}
	m.coordinator = lock
	m.options.Logger.DebugContext(ctx, "coordinates the group")
	return nil
}

// take takes free partitions until the member has its fair share, and reports whether it
// took any.
func (m *member) take(ctx context.Context, s snapshot) (taken bool, err error) {
	fair := s.fair()[m.session.ID()]
	for part, owner := range s.owners {
		if owner != 0 || len(m.parts) >= fair {
			continue
		}
		lock, err := m.session.TryLock(context.WithoutCancel(ctx), m.prefix+partitionLock+strconv.Itoa(part))
		if errors.Is(err, notify.ErrNotAcquired) { // another member was faster
			continue
		}
		if err != nil {
			return taken, fmt.Errorf("consumer: take partition %d of group %q: %w", part, m.group, err)
		}
		m.parts[part], taken = lock, true
	}
	return taken, nil
}

// surplus returns the partitions above the member's fair share.
func (m *member) surplus(s snapshot) []int {
	own := m.own()
	return own[min(len(own), s.fair()[m.session.ID()]):]
}

func (m *member) own() []int {
	own := make([]int, 0, len(m.parts))
	for part := range m.parts {
		own = append(own, part)
	}
	slices.Sort(own)
	return own
}

// release releases partitions. Their handler has ended, and their offset is stored.
func (m *member) release(ctx context.Context, parts []int) error {
	for _, part := range parts {
		if err := m.parts[part].Release(ctx); err != nil {
			return err
		}
		delete(m.parts, part)
	}
	return nil
}

// coordinate wakes the members while the partitions are not shared fairly, and stores the group's watermark.
func (m *member) coordinate(ctx context.Context, db *notify.DB, s snapshot) error {
	if m.coordinator == nil {
		return nil
	}
	if !slices.Equal(s.slots, m.last.slots) || !slices.Equal(s.owners, m.last.owners) {
		m.polls.Reset()
	}
	if s.settled > m.least {
		_, err := db.Pool().ExecContext(ctx, "UPDATE "+schema.OffsetTable+" SET settled = ?, member = ?, version = version + 1"+
			" WHERE topic = ? AND group_name = ? AND settled < ?", s.settled, m.options.Member, m.topic, m.group, s.settled)
		if err != nil {
			return stateError("store offset", err)
		}
		m.least = s.settled
	}
	if s.shared() {
		return nil
	}
	_, err := m.coordinator.Pass(context.WithoutCancel(ctx), 2*time.Second)
	if errors.Is(err, notify.ErrNotAcquired) { // another member has it now
		m.coordinator = nil
		return nil
	}
	return err
}

// wait returns when the next snapshot is due: for the coordinator soon, for other members when it wakes them or is gone.
func (m *member) wait(ctx context.Context) error {
	if m.coordinator != nil {
		return server.Pause(ctx, m.polls.NextBackOff())
	}
	lock, err := m.session.Lock(ctx, m.prefix+coordinatorLock, standby)
	if errors.Is(err, notify.ErrNotAcquired) {
		return nil
	}
	m.granted = lock
	return err
}
