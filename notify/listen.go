package notify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
	schema "github.com/mqnotify/mqnotify/sql"
)

const (
	// MaxPayload is the most bytes of a notification's payload.
	MaxPayload = 8000
	// maxNotificationName is the most characters of a notification's name.
	maxNotificationName = 255
	// NotificationsKept is how long notifications stay in their table. A process that could not read them for longer has
	// missed some.
	NotificationsKept = time.Hour
	// maxUnread is how many notifications wait for a receiver that is slow. When more come, it misses the oldest.
	maxUnread = 10_000
	// notificationPage is how many notifications are read at once.
	notificationPage = 1000
	// allocated is how long an INSERT may take, from the moment it has its id until its row is in the table. A row that
	// comes later, below others, is not found.
	allocated = time.Minute
	// maxGaps bounds the ids that are missing and that the reader looks for: those below are given up.
	maxGaps = 10_000
)

// ErrNotification is the error for a name or a payload that can't be a notification's.
var ErrNotification = errors.New("not a notification")

// Notification is a row of the table mqnotify_notification.
type Notification struct {
	ID      uint64
	Name    string
	Payload []byte
	Time    time.Time // of the INSERT, by the server's clock
	// Missed says that the receiver missed notifications of its names before this one: it was more than 10,000
	// notifications behind, or the process could not read the table for longer than NotificationsKept. A Notification
	// without an ID brings nothing but this news.
	Missed bool
}

// Notify sends a notification to the processes that listen to the name, in a transaction of its own. The payload has at
// most MaxPayload bytes. Its errors are ErrNotification and the server's.
//
// Any program can do the same with INSERT INTO mqnotify_notification (name, payload) VALUES (...).
func Notify(ctx context.Context, db *DB, name, payload string) error {
	if err := NotifyTx(ctx, db.pool, name, payload); err != nil {
		return err
	}
	if db.notifications.woken(ctx) {
		return nil
	}
	if err := db.Wake(ctx, schema.NotificationTable); err != nil {
		return fmt.Errorf("notify: the notification is stored, and its receivers find it by polling: %w", err)
	}
	return nil
}

// NotifyTx sends a notification inside the caller's transaction, so that it is received if the transaction commits, after
// the commit, and never was otherwise. Where the table mqnotify_notification has no wake trigger, the receivers find it by
// polling within a second, or at once when the caller calls [DB.Wake] for that table after the commit.
func NotifyTx(ctx context.Context, tx Execer, name, payload string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if len(payload) > MaxPayload {
		return fmt.Errorf("notify: %w: the payload has %d bytes, and %d is the most: store it in a table, and send its key",
			ErrNotification, len(payload), MaxPayload)
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO "+schema.NotificationTable+" (name, payload) VALUES (?, ?)", name, []byte(payload))
	if err != nil {
		return notificationError("send a notification", err)
	}
	return nil
}

func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("notify: %w: the name is empty", ErrNotification)
	case !utf8.ValidString(name):
		return fmt.Errorf("notify: %w: the name %q is not UTF-8", ErrNotification, name)
	case utf8.RuneCountInString(name) > maxNotificationName:
		return fmt.Errorf("notify: %w: the name has %d characters, and %d is the most", ErrNotification,
			utf8.RuneCountInString(name), maxNotificationName)
	}
	return nil
}

func notificationError(what string, err error) error {
	if server.Is(err, server.ErrNoSuchTable) {
		return fmt.Errorf("notify: %s: the table %s does not exist: make it with `mqnotify init`: %w", what, schema.NotificationTable, err)
	}
	return fmt.Errorf("notify: %s: %w", what, err)
}

// Listen returns a channel that gets the notifications of the names. It returns when every notification that commits
// afterwards will be received. The channel is closed after ctx ends. It gets each notification once, and after a lost
// connection those that came meanwhile; see [Notification.Missed] for the exceptions. Notifications come in the order of
// their ids, except that one whose transaction commits late comes late.
//
// All Listens of a DB share a few connections. Its errors are ErrNotification, the cause of ctx, and that of a first
// connection that fails.
func Listen(ctx context.Context, db *DB, names ...string) (<-chan Notification, error) {
	if len(names) == 0 {
		return nil, fmt.Errorf("notify: %w: no name to listen to", ErrNotification)
	}
	for _, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	r := &receiver{names: names, news: make(chan struct{}, 1)}
	if err := db.notifications.join(ctx, r); err != nil {
		return nil, err
	}
	out := make(chan Notification)
	go func() {
		defer close(out)
		defer db.notifications.leave(r)
		r.forward(ctx, out)
	}()
	return out, nil
}

// receiver is one Listen.
type receiver struct {
	names  []string
	reader *notificationReader
	news   chan struct{} // one slot

	mu     sync.Mutex
	unread []Notification
	missed bool
}

func (r *receiver) add(n Notification) {
	r.mu.Lock()
	if n.ID == 0 {
		r.missed = true
	} else {
		if len(r.unread) >= maxUnread {
			r.unread = r.unread[1:]
			r.missed = true
		}
		r.unread = append(r.unread, n)
	}
	r.mu.Unlock()
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// take returns the next notification, and false when there is none.
func (r *receiver) take() (n Notification, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ok = r.missed || len(r.unread) > 0; !ok {
		return n, false
	}
	if len(r.unread) > 0 {
		n, r.unread = r.unread[0], r.unread[1:]
	}
	n.Missed, r.missed = r.missed, false
	return n, true
}

// forward gives the channel what was added, until ctx ends.
func (r *receiver) forward(ctx context.Context, out chan<- Notification) {
	for {
		n, ok := r.take()
		if !ok {
			select {
			case <-r.news:
				continue
			case <-ctx.Done():
				return
			}
		}
		select {
		case out <- n:
		case <-ctx.Done():
			return
		}
	}
}

// notifications are the receivers of a DB.
type notifications struct {
	db *DB

	mu        sync.Mutex
	reader    *notificationReader // nil while there is no receiver
	checked   time.Time           // when triggered was found out
	triggered bool                // the table has a wake trigger
}

// woken reports whether a wake trigger tells the receivers of every notification.
func (l *notifications) woken(ctx context.Context) bool {
	l.mu.Lock()
	triggered, recent := l.triggered, time.Since(l.checked) < wakeKnown
	l.mu.Unlock()
	if recent {
		return triggered
	}
	triggers, err := waiting.ReadTriggers(ctx, l.db.pool) // an error: a call too many does no harm
	l.mu.Lock()
	defer l.mu.Unlock()
	l.triggered, l.checked = err == nil && triggers[schema.NotificationTable]&waiting.Insert != 0, time.Now()
	return l.triggered
}

// join returns when r gets what commits from then on.
func (l *notifications) join(ctx context.Context, r *receiver) error {
	l.mu.Lock()
	if l.reader == nil {
		l.reader = newNotificationReader(l.db)
	}
	r.reader = l.reader
	r.reader.add(r)
	l.mu.Unlock()
	var err error
	select {
	case <-r.reader.ready:
		err = r.reader.failed
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		l.leave(r)
	}
	return err
}

// leave returns when the reader has ended, if r was its last receiver.
func (l *notifications) leave(r *receiver) {
	l.mu.Lock()
	last := r.reader.remove(r)
	if l.reader == r.reader && (last || r.reader.hasFailed()) {
		l.reader = nil
	}
	l.mu.Unlock()
	if last {
		r.reader.stop() // without the mutex, which it may need
	}
}

// notificationReader reads every notification once.
//
// A notification whose transaction commits late has an id below others. The reader looks for every id that is missing: in
// READ UNCOMMITTED it sees whether the row is in the table and not committed yet. An id without a row is given up after
// the time that an INSERT may take.
type notificationReader struct {
	db     *DB
	auto   *Auto
	cancel context.CancelFunc
	ended  chan struct{}
	ready  chan struct{} // closed when it has begun, or has failed to
	failed error

	mu        sync.Mutex
	receivers map[string]map[*receiver]bool // by name
	users     int

	last uint64               // the largest id that was read
	gaps map[uint64]time.Time // ids below that are missing, and since when no row has had them
	read time.Time            // when the table was read
}

func newNotificationReader(db *DB) *notificationReader {
	ctx, cancel := context.WithCancel(context.Background())
	r := &notificationReader{
		db: db, auto: NewAuto(db, LargestID(schema.NotificationTable, "id"), AutoOptions{}),
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

// remove reports whether the receiver was the last one.
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

// give hands a notification to the receivers of its name.
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
	waits, pruned, highest := &Fibonacci{Jitter: 0.1}, time.Now(), head.value
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
			pause(ctx, waits.NextBackOff())
		}
		if head.any && head.value < highest { // the ids begin again, after a TRUNCATE for one
			r.last, highest = 0, 0
			clear(r.gaps)
			r.misses()
		}
		highest = max(highest, head.value)
	}
}

// begin finds out where to begin. The ids that are missing then may be those of transactions that commit later.
func (r *notificationReader) begin(ctx context.Context) error {
	if err := r.db.pool.GetContext(ctx, &r.last, "SELECT COALESCE(MAX(id), 0) FROM "+schema.NotificationTable); err != nil {
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

// missing notes that the ids between two others are missing. It reports whether it can look for all of them.
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

// ids reads which of the ids from the first missing one up to the last have a row.
func (r *notificationReader) ids(ctx context.Context, level sql.IsolationLevel) (ids []uint64, err error) {
	first := r.last
	for id := range r.gaps {
		first = min(first, id)
	}
	tx, err := r.db.pool.BeginTxx(ctx, &sql.TxOptions{Isolation: level, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }()
	err = tx.SelectContext(ctx, &ids, "SELECT id FROM "+schema.NotificationTable+" WHERE id BETWEEN ? AND ?", first, r.last)
	return ids, err
}

// round reads what is new, and reports whether anything was.
func (r *notificationReader) round(ctx context.Context) (found bool, err error) {
	if !r.read.IsZero() && time.Since(r.read) > NotificationsKept {
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

// late reads the rows with missing ids that have been committed.
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

// deliver reads a page of rows and gives them to their receivers.
func (r *notificationReader) deliver(ctx context.Context, where string, args ...any) (n int, err error) {
	var page []struct {
		ID      uint64
		Name    string
		Payload []byte
		Micros  int64
	}
	err = r.db.pool.SelectContext(ctx, &page, "SELECT id, name, payload, CAST(UNIX_TIMESTAMP(created_at) * 1000000 AS SIGNED) AS micros FROM "+
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

// prune deletes old notifications, if the account may: another listening process does, otherwise. It finds them without a
// lock, because a DELETE of a range waits for the transaction whose row is the next one.
func (r *notificationReader) prune(ctx context.Context) {
	for range 100 {
		var ids []uint64
		err := r.db.pool.SelectContext(ctx, &ids, "SELECT id FROM "+schema.NotificationTable+
			" WHERE created_at < NOW(6) - INTERVAL ? SECOND ORDER BY created_at LIMIT ?", int(NotificationsKept.Seconds()), notificationPage)
		if err != nil || len(ids) == 0 {
			return
		}
		args := make([]any, len(ids))
		for i, id := range ids {
			args[i] = id
		}
		_, err = r.db.pool.ExecContext(ctx, "DELETE FROM "+schema.NotificationTable+" WHERE id IN (?"+
			strings.Repeat(", ?", len(ids)-1)+")", args...)
		if err != nil || len(ids) < notificationPage {
			return
		}
	}
}
