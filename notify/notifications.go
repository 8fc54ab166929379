package notify

import (
	"cmp"

	"context"
	"database/sql"
	"database/sql/driver"

	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
)

// readLimit bounds each read of notifications. A connection that takes longer counts as lost: a network may have dropped it
// without a sign.
var readLimit = time.Minute

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

	last  uint64    // the largest id that was read
	time  int64     // the largest time of a row that was read, in microseconds
	from  int64     // while again, only rows that are newer are given
	again bool      // the ids began again, and no round was made since
	gaps  []gap     // the missing ids below last, in ascending order
	read  time.Time // when the table was last read

	nextLate time.Time // when the missing ids are read again
}

// gap is a range of missing ids.
type gap struct {
	first, last uint64
	seen        time.Time // when a poll last saw rows with these ids, or first saw none
}

func newNotificationReader(db *DB) *notificationReader {
	ctx, cancel := context.WithCancel(context.Background())
	r := &notificationReader{
		db: db, auto: core.NewAuto(db, core.LargestID(schema.NotificationTable, "id"), core.AutoOptions{}),
		cancel: cancel, ended: make(chan struct{}), ready: make(chan struct{}),
		receivers: make(map[string]map[*receiver]bool),
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
			_ = server.Pause(ctx, waits.NextBackOff())
		}
		largest, some := head.Value()
		if some && largest < highest && r.restarted(ctx, highest) {
			r.last, highest, r.gaps = 0, 0, nil
			r.again, r.from = true, r.time // after a failover to a server that is behind, most rows were received before
		}
		highest = max(highest, largest)
	}
}

// restarted reports whether the ids began again below highest, for example after a TRUNCATE. A row that was deleted by hand does not
// change the next id.
func (r *notificationReader) restarted(ctx context.Context, highest uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	conn, err := r.db.Pool().DB.Conn(ctx)
	if err != nil {
		return false // asked again after the next wait
	}
	defer func() { _ = conn.Raw(func(any) error { return driver.ErrBadConn }) }() // NextAutoIncrement changes a setting of its session
	t, err := table.Describe(ctx, conn, r.db.Name(), schema.NotificationTable)
	if err != nil {
		return false
	}
	next, known, err := table.NextAutoIncrement(ctx, conn, t)
	return err == nil && known && next <= highest
}

// begin reads where to begin. It keeps the ids that are missing then, because transactions that commit later may have them.
func (r *notificationReader) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	err := r.db.Pool().QueryRowContext(ctx, "SELECT COALESCE(MAX(id), 0), CAST(COALESCE(UNIX_TIMESTAMP(MAX(created_at)), 0) * 1000000 AS SIGNED) FROM "+
		schema.NotificationTable).Scan(&r.last, &r.time)
	if err != nil {
		return err
	}
	r.read = time.Now()
	_ = r.missing(r.last-min(r.last, maxGaps), r.last)
	ids, err := r.ids(ctx, sql.LevelReadCommitted)
	r.take(ids)
	return err
}

// missing records the ids from after+1 to before as missing. It reports false if maxGaps made it give up some.
func (r *notificationReader) missing(after, before uint64) (all bool) {
	if after < before {
		r.gaps = append(r.gaps, gap{after + 1, before, time.Now()})
	}
	if len(r.gaps) > maxGaps {
		r.gaps = slices.Delete(r.gaps, 0, len(r.gaps)-maxGaps)
		return false
	}
	return true
}

// take removes the ids, in ascending order, from the gaps, and returns those that were in one.
func (r *notificationReader) take(ids []uint64) (taken []uint64) {
	var left []gap
	for _, g := range r.gaps {
		for ; len(ids) > 0 && ids[0] <= g.last; ids = ids[1:] {
			id := ids[0]
			if id < g.first {
				continue
			}
			if g.first < id {
				left = append(left, gap{g.first, id - 1, g.seen})
			}
			g.first = id + 1
			taken = append(taken, id)
		}
		if g.first <= g.last {
			left = append(left, g)
		}
	}
	r.gaps = left
	return taken
}

// putBack adds the ids, in ascending order, to the gaps again, because a poll has just seen their rows.
func (r *notificationReader) putBack(ids []uint64) {
	now := time.Now()
	for i, id := range ids {
		if i > 0 && ids[i-1]+1 == id {
			r.gaps[len(r.gaps)-1].last = id
			continue
		}
		r.gaps = append(r.gaps, gap{id, id, now})
	}
	slices.SortFunc(r.gaps, func(a, b gap) int { return cmp.Compare(a.first, b.first) })
}

// fewGaps is up to how many gaps a poll asks for each by itself. More would make a long statement.
const fewGaps = 100

// ids reads which of the missing ids have a row. If there are many gaps, it also returns ids between them.
func (r *notificationReader) ids(ctx context.Context, level sql.IsolationLevel) (ids []uint64, err error) {
	asked := r.gaps
	if len(asked) > fewGaps {
		asked = []gap{{first: asked[0].first, last: r.last}}
	}
	if len(asked) == 0 {
		return nil, nil
	}
	args := make([]any, 0, 2*len(asked))
	for _, g := range asked {
		args = append(args, g.first, g.last)
	}
	where := "id BETWEEN ? AND ?" + strings.Repeat(" OR id BETWEEN ? AND ?", len(asked)-1)
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	tx, err := r.db.Pool().BeginTxx(ctx, &sql.TxOptions{Isolation: level, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }()
	err = tx.SelectContext(ctx, &ids, "SELECT id FROM "+schema.NotificationTable+" WHERE "+where+" ORDER BY id", args...)
	return ids, err
}

// round reads new rows, and reports whether there were any.
func (r *notificationReader) round(ctx context.Context) (found bool, err error) {
	if begun := time.Now(); len(r.gaps) > 0 && !begun.Before(r.nextLate) {
		if found, err = r.late(ctx); err != nil {
			return found, err
		}
		r.nextLate = time.Now().Add(10 * time.Since(begun)) // at most a tenth of the time, however many ids are missing
	}
	for {
		n, err := r.deliver(ctx, "id > ?", r.last)
		if err != nil {
			return found, err
		}
		found = found || n > 0
		if n < notificationPage {
			if r.read = time.Now(); r.again {
				r.again, r.from = false, 0
				r.misses()
			}
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
	there := r.take(ids)
	r.gaps = slices.DeleteFunc(r.gaps, func(g gap) bool { return time.Since(g.seen) > allocated })
	r.putBack(there)
	for some := range slices.Chunk(there, notificationPage/2) {
		args := make([]any, len(some))
		for i, id := range some {
			args[i] = id
		}
		n, err := r.deliver(ctx, "id IN (?"+strings.Repeat(", ?", len(some)-1)+")", args...)
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
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	err = r.db.Pool().SelectContext(ctx, &page, "SELECT id, name, payload, CAST(UNIX_TIMESTAMP(created_at) * 1000000 AS SIGNED) AS micros FROM "+
		schema.NotificationTable+" WHERE "+where+" ORDER BY id LIMIT ?", append(args, notificationPage)...)
	if err == nil && !r.read.IsZero() && time.Since(r.read) > notificationsKept { // once for an outage, when it is over
		r.misses()
		r.read = time.Now()
	}
	var ids []uint64
	for _, row := range page {
		ids = append(ids, row.ID)
		if row.ID > r.last {
			if !r.missing(r.last, row.ID-1) && r.last > 0 {
				r.misses()
			}
			r.last = row.ID
		}
		r.time = max(r.time, row.Micros)
		if row.Micros > r.from {
			r.give(Notification{ID: row.ID, Name: row.Name, Payload: row.Payload, Time: time.UnixMicro(row.Micros).UTC()})
		}
	}
	r.take(ids)
	return len(page), err
}

// prune deletes old notifications, but never the newest, because the head would go back. If the account may not, another
// listening process does. prune selects the ids first, without a lock, because a DELETE of a range would wait for the transaction that
// holds the next row.
func (r *notificationReader) prune(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	for range 100 {
		var ids []uint64
		err := r.db.Pool().SelectContext(ctx, &ids, "SELECT id FROM "+schema.NotificationTable+
			" WHERE created_at < "+schema.SecondsAgo+
			" AND id < (SELECT MAX(id) FROM "+schema.NotificationTable+") ORDER BY created_at LIMIT ?",
			int(notificationsKept.Seconds()), int(notificationsKept.Seconds()), notificationPage)
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
