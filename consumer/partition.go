package consumer

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

const (
	maxPartitions     = 256
	defaultPartitions = 64
)

// sharing is the definition of a shared group, the same for all its members.
type sharing struct {
	topic, group string
	parts        int
	by           string // "column C", "header H", or empty for the row's id
}

// A shared group's row contains this in place of ids: sharedVersion, the number of partitions (a
// varint), and by. A member that does not share the group fails to read it as ids.
const sharedVersion = 2

func (s sharing) encode() []byte {
	return append(binary.AppendUvarint([]byte{sharedVersion}, uint64(s.parts)), s.by...)
}

// decodeSharing decodes what encode wrote; shared is false for a group that is not shared.
func decodeSharing(topic, group string, stored []byte) (s sharing, shared bool, err error) {
	if len(stored) == 0 || stored[0] != sharedVersion {
		return s, false, nil
	}
	parts, n := binary.Uvarint(stored[1:])
	if n <= 0 || parts == 0 || parts > maxPartitions {
		return s, true, fmt.Errorf("consumer: offset of group %q: %w", group, position.ErrDamaged)
	}
	return sharing{topic, group, int(parts), string(stored[1+n:])}, true, nil
}

// asked returns the sharing that the options ask for in a new group.
func asked(t *table.Table, options Options) sharing {
	s := sharing{topic: t.Name, group: options.Group, parts: options.Partitions}
	if s.parts == 0 {
		s.parts = defaultPartitions
	}
	switch name := options.PartitionBy; {
	case name == "" && t.IsMessageTable():
		s.by = byHeader + "key"
	case name == "":
	case slices.ContainsFunc(t.Columns, func(c table.Column) bool { return strings.EqualFold(c.Name, name) }):
		s.by = byColumn + name
	default:
		s.by = byHeader + name
	}
	return s
}

const byColumn, byHeader = "column ", "header "

// agrees returns notify.ErrOptions if the options contradict the group's sharing.
func (s sharing) agrees(t *table.Table, options Options) error {
	want := asked(t, options)
	switch {
	case options.Partitions != 0 && options.Partitions != s.parts:
		return fmt.Errorf("consumer: group %q has %d partitions, not %d: omit the number, or begin again with Reset (--reset): %w",
			s.group, s.parts, options.Partitions, notify.ErrOptions)
	case options.PartitionBy != "" && want.by != s.by:
		return fmt.Errorf("consumer: group %q is partitioned by %s, not by %s: omit it, or begin again with Reset (--reset): %w",
			s.group, byText(s.by), byText(want.by), notify.ErrOptions)
	}
	return nil
}

func byText(by string) string {
	if by == "" {
		return "the rows' ids"
	}
	return by
}

// expression returns SQL for a row's partition. CRC32 gives the same result on every server and in every program. It is not secret: a
// client that chooses the keys can put all messages into one partition.
func (s sharing) expression(t *table.Table, key string) (string, error) {
	value := key
	if name, ok := strings.CutPrefix(s.by, byColumn); ok {
		column, err := t.Column(name)
		if err != nil {
			return "", err
		}
		value = ident.Quote(column.Name)
		if column.DataType == "char" {
			value = "RTRIM(" + value + ")" // PAD_CHAR_TO_FULL_LENGTH, if a member has it, would give another number
		}
		value = "COALESCE(" + value + ", " + key + ")"
	} else if name, ok := strings.CutPrefix(s.by, byHeader); ok {
		if !t.IsMessageTable() {
			return "", fmt.Errorf("consumer: %s has no column %s to partition by, and no headers: %w", t, ident.Quote(name), table.ErrNoColumn)
		}
		value = "COALESCE(JSON_UNQUOTE(JSON_EXTRACT(headers, " + ident.Literal(`$."`+name+`"`) + ")), " + key + ")"
	}
	return "CRC32(" + value + ") % " + strconv.Itoa(s.parts), nil
}

// shares are the partitions that a member owns, and the fence under which it stores their progress. The member stores the ids that
// it has read as the progress of each of its partitions. This is right because whether IDs of other partitions are done is
// irrelevant to a partition.
type shares struct {
	sharing
	fence uint64
	own   []int                      // sorted
	mine  map[int]bool               // the same partitions
	base  map[int]*position.Progress // a partition's stored progress, if it is ahead of begun
	// again is true while rows of dead letters are read, which were handled before.
	again bool
}

// claim sets a fence on the partitions and reads their progress. begun is the progress that they have in common.
func (s sharing) claim(ctx context.Context, db *notify.DB, own []int, member string) (_ *shares, begun position.Progress, err error) {
	claimed := &shares{sharing: s, own: own, mine: make(map[int]bool), base: make(map[int]*position.Progress)}
	for _, part := range own {
		claimed.mine[part] = true
	}
	if err := db.Pool().GetContext(ctx, &claimed.fence, "SELECT UUID_SHORT()"); err != nil {
		return nil, begun, stateError("take fence", err)
	}
	tx, err := db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return nil, begun, stateError("take fence", err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := claimed.update(ctx, tx, "fence = ?, member = ?", "TRUE", own, claimed.fence, member); err != nil {
		return nil, begun, err
	}
	var stored []struct {
		Part      int
		Settled   uint64
		Delivered []byte
	}
	err = tx.SelectContext(ctx, &stored, "SELECT part, settled, delivered FROM "+schema.PartitionTable+
		" WHERE topic = ? AND group_name = ? AND part IN ("+list(own)+")", s.topic, s.group)
	if err != nil {
		return nil, begun, stateError("read partitions", err)
	}
	// Check after the rows are locked, because another member may have reset the group before.
	if now, err := readGroup(ctx, tx, s.topic, s.group); err != nil || string(now.Delivered) != string(s.encode()) {
		return nil, begun, errors.Join(err, fmt.Errorf("consumer: group %q has changed: %w", s.group, errFenced))
	}
	if err := tx.Commit(); err != nil {
		return nil, begun, stateError("take fence", err)
	}
	for i, row := range stored {
		done, err := position.Decode(row.Delivered, row.Settled)
		if err != nil {
			return nil, begun, fmt.Errorf("consumer: offset of partition %d of group %q: %w", row.Part, s.group, err)
		}
		p := &position.Progress{Settled: row.Settled, Done: done}
		if claimed.base[row.Part] = p; i == 0 {
			begun = p.Clone()
		} else {
			begun = begun.Common(p)
		}
	}
	for part, p := range claimed.base { // most partitions have exactly the common progress
		if p.Settled == begun.Settled && slices.Equal(p.Done.Spans, begun.Done.Spans) {
			delete(claimed.base, part)
		}
	}
	return claimed, begun, nil
}

// partOf returns the partition in a row's last column, or passed if the member must not handle the row.
func (s *shares) partOf(id uint64, column []driver.Value) (int, error) {
	if s == nil {
		return 0, nil
	}
	n, err := toID(column[0])
	if err != nil {
		return 0, err
	}
	part := int(n)
	if !s.mine[part] || !s.again && s.handled(part, id) {
		return passed, nil
	}
	return part, nil
}

// handled reports whether the row was handled before the member had its partition. It works without members that share.
func (s *shares) handled(part int, id uint64) bool {
	return s != nil && s.base[part] != nil && s.base[part].Has(id)
}

// store implements ledger, for all partitions.
func (s *shares) store(ctx context.Context, db notify.Tx, p position.Progress) error {
	return s.storeParts(ctx, db, p, s.own)
}

func (s *shares) storeOf(ctx context.Context, db notify.Tx, p position.Progress, messages []Message) (whole bool, err error) {
	var parts []int
	for _, m := range messages {
		parts = append(parts, m.part)
	}
	slices.Sort(parts)
	parts = slices.Compact(parts)
	return len(parts) == len(s.own), s.storeParts(ctx, db, p, parts)
}

// storeParts stores the progress. A partition whose base the progress does not cover yet needs a statement of its own; one statement
// stores all others.
func (s *shares) storeParts(ctx context.Context, db notify.Tx, p position.Progress, parts []int) error {
	var together []int
	for _, part := range parts {
		base := s.base[part]
		if base == nil || p.Covers(base) {
			together = append(together, part)
			continue
		}
		if err := s.storeSame(ctx, db, p.Union(base), []int{part}); err != nil {
			return err
		}
	}
	return s.storeSame(ctx, db, p, together)
}

func (s *shares) storeSame(ctx context.Context, db notify.Tx, p position.Progress, parts []int) error {
	if len(parts) == 0 {
		return nil
	}
	return s.update(ctx, db, "settled = ?, delivered = ?", "fence = "+strconv.FormatUint(s.fence, 10), parts, p.Settled, p.Done.Encode(p.Settled))
}

// update changes the rows of the partitions. It returns errFenced if it did not change all of them. The statement names the partitions,
// so that it locks no other row.
func (s *shares) update(ctx context.Context, db notify.Tx, set, condition string, parts []int, args ...any) error {
	result, err := db.ExecContext(ctx, "UPDATE "+schema.PartitionTable+" SET "+set+", version = version + 1 WHERE topic = ? AND group_name = ?"+
		" AND part IN ("+list(parts)+") AND "+condition, append(args, s.topic, s.group)...)
	if err != nil {
		return stateError("store partitions", err)
	}
	rows, err := result.RowsAffected()
	if err != nil {
		return fmt.Errorf("consumer: store partitions: %w", err)
	}
	if rows != int64(len(parts)) {
		return fmt.Errorf("consumer: store partitions of group %q: %w", s.group, errFenced)
	}
	return nil
}

func list(numbers []int) string {
	var text []byte
	for i, n := range numbers {
		if i > 0 {
			text = append(text, ", "...)
		}
		text = strconv.AppendInt(text, int64(n), 10)
	}
	return string(text)
}

// groupRow is the offset's row of a group.
type groupRow struct {
	Settled   uint64
	Delivered []byte
}

// readGroup reads the row. If there is none, Delivered is empty, which it never is in a row.
func readGroup(ctx context.Context, db sqlx.QueryerContext, topic, group string) (row groupRow, err error) {
	err = sqlx.GetContext(ctx, db, &row, "SELECT settled, delivered FROM "+schema.OffsetTable+" WHERE topic = ? AND group_name = ?", topic, group)
	if errors.Is(err, sql.ErrNoRows) {
		return row, nil
	}
	if err != nil {
		return row, stateError("read offset", err)
	}
	return row, nil
}

// make creates the group's partitions, all with the progress p.
func (s sharing) make(ctx context.Context, db *notify.DB, p position.Progress, member string) (err error) {
	tx, err := db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return stateError("make partitions", err)
	}
	defer func() { _ = tx.Rollback() }()
	const onDuplicate = " ON DUPLICATE KEY UPDATE settled = VALUES(settled), delivered = VALUES(delivered), fence = UUID_SHORT(), version = version + 1"
	_, err = tx.ExecContext(ctx, "INSERT INTO "+schema.OffsetTable+" (topic, group_name, settled, delivered, fence, version, member)"+
		" VALUES (?, ?, ?, ?, 0, 0, ?)"+onDuplicate, s.topic, s.group, p.Settled, s.encode(), member)
	if err != nil {
		return stateError("make offset", err)
	}
	for part := range s.parts {
		_, err = tx.ExecContext(ctx, "INSERT INTO "+schema.PartitionTable+" (topic, group_name, part, settled, delivered, fence, version, member)"+
			" VALUES (?, ?, ?, ?, ?, 0, 0, '')"+onDuplicate, s.topic, s.group, part, p.Settled, p.Done.Encode(p.Settled))
		if err != nil {
			return stateError("make partitions", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return stateError("make partitions", err)
	}
	return nil
}
