package notify

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

const (
	// maxPayload is the most bytes of a notification's payload.
	maxPayload = 8000
	// maxNotificationName is the most characters of a notification's name.
	maxNotificationName = 255
	// notificationsKept is how long notifications stay in their table. A process that could not read them for longer may have
	// missed some.
	notificationsKept = time.Hour
	// maxUnread is how many notifications wait for a slow receiver. When more come, it misses the oldest.
	maxUnread = 10_000
	// notificationPage is how many notifications are read at once.
	notificationPage = 1000
	// allocated is the longest time from the moment when an INSERT gets its id until its row is in the table. A row that
	// appears later below a larger id is missed.
	allocated = time.Minute
	// triggerKnown is how long the answer whether the table has a wake trigger is cached.
	triggerKnown = time.Minute
	// maxGaps bounds the ranges of missing ids that the reader keeps. It gives up the smallest ones.
	maxGaps = 20_000
)

// Notification is a row of the table mqnotify_notification.
type Notification struct {
	ID      uint64
	Name    string
	Payload []byte
	Time    time.Time // of the INSERT, by the server's clock
	// Missed means that the receiver missed notifications of its names before this one, because it was more than 10,000
	// notifications behind, or because the process could not read the table for longer than an hour. A Notification
	// without an ID carries no other information.
	Missed bool
}

// Notify sends a notification to the processes that listen to the name, in a transaction of its own. The payload has at
// most 8,000 bytes. Notify returns ErrOptions and the server's errors of the INSERT.
//
// Any program can do the same with INSERT INTO mqnotify_notification (name, payload) VALUES (...).
func Notify(ctx context.Context, db *DB, name, payload string) error {
	if err := NotifyTx(ctx, db.Pool(), name, payload); err != nil {
		return err
	}
	if listening(db).woken(ctx) {
		return nil
	}
	_ = db.Wake(ctx, schema.NotificationTable) // the notification is stored; if this fails, its receivers find it by polling
	return nil
}

// NotifyTx sends a notification inside the caller's transaction. Listeners receive it after the commit, and never if the
// transaction rolls back. If the table mqnotify_notification has no wake trigger, they find it by polling within a second, or
// at once if the caller calls [DB.Wake] for that table after the commit.
func NotifyTx(ctx context.Context, tx Tx, name, payload string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if len(payload) > maxPayload {
		return fmt.Errorf("notify: %w: the payload has %d bytes, and the limit is %d: store it in a table, and send its key",
			ErrOptions, len(payload), maxPayload)
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
		return fmt.Errorf("notify: %w: the name is empty", ErrOptions)
	case !utf8.ValidString(name):
		return fmt.Errorf("notify: %w: the name %q is not UTF-8", ErrOptions, name)
	case utf8.RuneCountInString(name) > maxNotificationName:
		return fmt.Errorf("notify: %w: the name has %d characters, and the limit is %d", ErrOptions,
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

// Listen returns a channel of the notifications of the names. Every notification that commits after Listen has returned will be
// received. The channel is closed after ctx ends. It receives each notification once, and after a lost connection also those
// that were committed in the meantime; see [Notification.Missed] for the exceptions. Without Missed it may miss a notification whose
// transaction takes an hour, because rows are deleted an hour after their INSERT, and one whose transaction was open when Listen began
// and has taken an id before the newest 20,000. Notifications come in the order of
// their ids, except that one whose transaction commits late comes late.
//
// All Listens of a DB share a few connections. Listen returns ErrOptions, the cause of ctx, or the error of a failed first
// connection.
func Listen(ctx context.Context, db *DB, names ...string) (<-chan Notification, error) {
	if len(names) == 0 {
		return nil, fmt.Errorf("notify: %w: no name to listen to", ErrOptions)
	}
	for _, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	r := &receiver{names: slices.Clone(names), news: make(chan struct{}, 1)}
	l := listening(db)
	if err := l.join(ctx, r); err != nil {
		return nil, err
	}
	out := make(chan Notification)
	go func() {
		defer close(out)
		defer l.leave(r)
		r.forward(ctx, out)
	}()
	return out, nil
}

// receiver is the state of one call of Listen.
type receiver struct {
	names  []string
	reader *notificationReader
	news   chan struct{} // has a value when there is something to take; capacity 1

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

// forward sends to the channel what was added, until ctx ends.
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

// listening returns the DB's notifications, which all its Listens share.
func listening(db *DB) *notifications {
	return core.Kept(db, "notifications", func() *notifications { return &notifications{db: db} })
}

// notifications starts the reader of a DB with its first receiver and stops it with the last.
type notifications struct {
	db *DB

	mu        sync.Mutex
	reader    *notificationReader // nil while there is no receiver
	checked   time.Time           // when triggered was read
	triggered bool                // the table has a wake trigger
}

// woken reports whether a wake trigger wakes the receivers at every notification.
func (l *notifications) woken(ctx context.Context) bool {
	l.mu.Lock()
	triggered, recent := l.triggered, time.Since(l.checked) < triggerKnown
	l.mu.Unlock()
	if recent {
		return triggered
	}
	triggers, err := waiting.ReadTriggers(ctx, l.db.Pool()) // after an error Notify also calls mqnotify_wake, which does no harm
	l.mu.Lock()
	defer l.mu.Unlock()
	l.triggered, l.checked = err == nil && triggers[schema.NotificationTable]&waiting.Insert != 0, time.Now()
	return l.triggered
}

// join adds r, and returns when r will receive everything that commits from then on.
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

// leave removes r. If r was the last receiver, leave returns when the reader has ended.
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
