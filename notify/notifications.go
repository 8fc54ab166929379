package notify

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/schema"
)

// notificationReader reads every notification once.
//
// A notification whose transaction commits late has an id below others that were read before. The reader polls every missing id
// in READ UNCOMMITTED, which shows whether the row is in the table and not committed yet. It gives up an id without a row after
// the longest time that an INSERT may take (allocated).
type notificationReader struct {
	db     *DB
	auto   *core.Auto
	cancel context.CancelFunc
	ended  chan struct{}
	ready  chan struct{} // closed when it has begun or failed to begin
	failed error

	mu        sync.Mutex
	receivers map[string]map[*receiver]bool // by name
	users     int

	last uint64               // the largest id that was read
	gaps map[uint64]time.Time // the missing ids below last, and when a poll last saw a row, or first saw none
	read time.Time            // when the table was last read
}

func newNotificationReader(db *DB) *notificationReader {
	ctx, cancel := context.WithCancel(context.Background())
	r := &notificationReader{
		db: db, auto: core.NewAuto(db, core.LargestID(schema.NotificationTable, "id"), core.AutoOptions{}),
		cancel: cancel, ended: make(chan struct{}), ready: make(chan struct{}),
		receivers: make(map[string]map[*receiver]bool), gaps: make(map[uint64]time.Time),
	}
	go func() {
		defer close(r.ended)
		r.run(ctx)
	}()
	return r
}

func (r *notificationReader) stop() {
	r.cancel()
	<-r.ended
	_ = r.auto.Close()
}

func (r *notificationReader) hasFailed() bool {
	select {
	case <-r.ready:
		return r.failed != nil
	default:
		return false
	}
}

func (r *notificationReader) add(one *receiver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users++
	for _, name := range one.names {
		if r.receivers[name] == nil {
			r.receivers[name] = make(map[*receiver]bool)
		}
		r.receivers[name][one] = true
	}
}

// remove reports whether the receiver was the last one of the reader.
func (r *notificationReader) remove(one *receiver) (last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range one.names {
		if delete(r.receivers[name], one); len(r.receivers[name]) == 0 {
			delete(r.receivers, name)
		}
	}
	r.users--
	return r.users == 0
}

// give adds a notification to the receivers of its name.
func (r *notificationReader) give(n Notification) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for receiver := range r.receivers[n.Name] {
		receiver.add(n)
	}
}

// misses tells all receivers that they missed notifications.
func (r *notificationReader) misses() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, some := range r.receivers {
		for receiver := range some {
			receiver.add(Notification{Missed: true})
		}
	}
}

func (r *notificationReader) run(ctx context.Context) {
	head, err := r.auto.Head(ctx)
	if err == nil {
		err = r.begin(ctx)
	}
	if err != nil {
		r.failed = notificationError("listen", err)
	}
	close(r.ready)
	waits, pruned, highest := &Fibonacci{Jitter: 0.1}, time.Now(), uint64(0)
	if err == nil {
		highest, _ = head.Value()
	}
	for err == nil && ctx.Err() == nil {
		found, failed := r.round(ctx)
		if failed == nil && time.Since(pruned) > time.Minute {
			pruned = time.Now()
			r.prune(ctx)
		}
		if found {
			waits.Reset()
		}
		bound := time.Minute
		if failed != nil || len(r.gaps) > 0 {
			bound = waits.NextBackOff()
		}
		now, failed := r.auto.Wait(ctx, head, bound)
		if head = now; failed != nil {
			core.Pause(ctx, waits.NextBackOff())
		}
		largest, some := head.Value()
		if some && largest < highest { // the ids began again, for example after a TRUNCATE
			r.last, highest = 0, 0
			clear(r.gaps)
			r.misses()
		}
		highest = max(highest, largest)
	}
}

// begin reads where to begin. It keeps the ids that are missing then, because transactions that commit later may have them.
func (r *notificationReader) begin(ctx context.Context) error {
	if err := r.db.Pool().GetContext(ctx, &r.last, "SELECT COALESCE(MAX(id), 0) FROM "+schema.NotificationTable); err != nil {
		return err
	}
	r.read = time.Now()
	_ = r.missing(0, r.last)
	ids, err := r.ids(ctx, sql.LevelReadCommitted)
	for _, id := range ids {
		delete(r.gaps, id)
	}
	return err
}

// missing records the ids from after+1 to before as missing. It reports false if maxGaps made it give up some.
func (r *notificationReader) missing(after, before uint64) (all bool) {
	now, all := time.Now(), true
	if before-after > maxGaps {
		after, all = before-maxGaps, false
	}
	for id := after + 1; id <= before; id++ {
		r.gaps[id] = now
	}
	if len(r.gaps) > 2*maxGaps {
		maps.DeleteFunc(r.gaps, func(id uint64, _ time.Time) bool { return id+maxGaps <= before })
		all = false
	}
	return all
}

// ids reads which ids from the smallest missing one up to the last have a row.
func (r *notificationReader) ids(ctx context.Context, level sql.IsolationLevel) (ids []uint64, err error) {
	first := r.last
	for id := range r.gaps {
		first = min(first, id)
	}
	tx, err := r.db.Pool().BeginTxx(ctx, &sql.TxOptions{Isolation: level, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }()
	err = tx.SelectContext(ctx, &ids, "SELECT id FROM "+schema.NotificationTable+" WHERE id BETWEEN ? AND ?", first, r.last)
	return ids, err
}

// round reads new rows, and reports whether there were any.
func (r *notificationReader) round(ctx context.Context) (found bool, err error) {
	if !r.read.IsZero() && time.Since(r.read) > notificationsKept {
		r.misses()
	}
	if len(r.gaps) > 0 {
		if found, err = r.late(ctx); err != nil {
			return found, err
		}
	}
	for {
		n, err := r.deliver(ctx, "id > ?", r.last)
		if err != nil {
			return found, err
		}
		found = found || n > 0
		if n < notificationPage {
			r.read = time.Now()
			return found, nil
		}
	}
}

// late reads the rows of missing ids that were committed since the last poll.
func (r *notificationReader) late(ctx context.Context) (found bool, err error) {
	ids, err := r.ids(ctx, sql.LevelReadUncommitted)
	if err != nil {
		return false, err
	}
	var open []any
	there := make(map[uint64]bool)
	for _, id := range ids {
		if _, missing := r.gaps[id]; missing {
			there[id] = true
			open = append(open, id)
		}
	}
	now := time.Now()
	for id, since := range r.gaps {
		switch {
		case there[id]:
			r.gaps[id] = now
		case now.Sub(since) > allocated:
			delete(r.gaps, id)
		}
	}
	for some := range slices.Chunk(open, notificationPage/2) {
		n, err := r.deliver(ctx, "id IN (?"+strings.Repeat(", ?", len(some)-1)+")", some...)
		if found = found || n > 0; err != nil {
			return found, err
		}
	}
	return found, nil
}

// deliver reads a page of rows and adds them to their receivers.
func (r *notificationReader) deliver(ctx context.Context, where string, args ...any) (n int, err error) {
	var page []struct {
		ID      uint64
		Name    string
		Payload []byte
		Micros  int64
	}
	err = r.db.Pool().SelectContext(ctx, &page, "SELECT id, name, payload, CAST(UNIX_TIMESTAMP(created_at) * 1000000 AS SIGNED) AS micros FROM "+
		schema.NotificationTable+" WHERE "+where+" ORDER BY id LIMIT ?", append(args, notificationPage)...)
	for _, row := range page {
		if row.ID > r.last {
			if !r.missing(r.last, row.ID-1) && r.last > 0 {
				r.misses()
			}
			r.last = row.ID
		}
		delete(r.gaps, row.ID)
		r.give(Notification{ID: row.ID, Name: row.Name, Payload: row.Payload, Time: time.UnixMicro(row.Micros).UTC()})
	}
	return len(page), err
}

// prune deletes old notifications, but never the newest, whose absence would look like a TRUNCATE. If the account may not, another
// listening process does. prune selects the ids first, without a lock, because a DELETE of a range would wait for the transaction that
// holds the next row.
func (r *notificationReader) prune(ctx context.Context) {
	for range 100 {
		var ids []uint64
		err := r.db.Pool().SelectContext(ctx, &ids, "SELECT id FROM "+schema.NotificationTable+
			" WHERE created_at < NOW(6) - INTERVAL ? SECOND AND id < (SELECT MAX(id) FROM "+schema.NotificationTable+") ORDER BY created_at LIMIT ?",
			int(notificationsKept.Seconds()), notificationPage)
		if err != nil || len(ids) == 0 {
			return
		}
		args := make([]any, len(ids))
		for i, id := range ids {
			args[i] = id
		}
		_, err = r.db.Pool().ExecContext(ctx, "DELETE FROM "+schema.NotificationTable+" WHERE id IN (?"+
			strings.Repeat(", ?", len(ids)-1)+")", args...)
		if err != nil || len(ids) < notificationPage {
			return
		}
	}
}
