package queue

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/robfig/cron/v3"

	"github.com/mqnotify/mqnotify/internal/name"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

const (
	maxScheduleName = 128 // characters
	maxCron         = 255
)

// Recurring is a task that is entered at recurring times.
type Recurring struct {
	// Name identifies it among the queue's recurring tasks; at most 128 characters.
	Name string
	// Cron is when it is due, in the five fields of crontab(5) and in UTC ("0 3 * * *", "*/5 * * * MON-FRI"),
	// or @hourly, @daily, "@every 90s". With "CRON_TZ=Europe/Berlin " in front it is in that
	// zone: a time that the zone's clocks skip is left out on that day, and one that
	// they show twice occurs twice.
	Cron string
	// Entry is the task, without Delay and At. If Unique is set, it is not entered while
	// the previous one is not finished.
	Entry Entry
	// Next is the next due time, by the server's clock. Schedules sets it; Schedule ignores it.
	Next time.Time
}

// Schedule stores a recurring task. The queue's workers enter it once at every due time,
// however many workers there are: the transaction that enters the task also moves the stored time, by the
// server's clock. Times that pass while no worker runs
// make one task together when the next worker starts. A recurring task of the same name is replaced; its due
// time stays if its Cron is the same.
func (q *Queue) Schedule(ctx context.Context, r Recurring) error {
	if err := checkName("the schedule's name", r.Name, maxScheduleName); err != nil {
		return err
	}
	if problem := name.Problem(r.Cron, maxCron); problem != "" {
		return optionsf("Cron %.80q: %s", r.Cron, problem)
	}
	times, err := parseCron(r.Cron)
	if err != nil {
		return optionsf("Cron %q: %w", r.Cron, err)
	}
	if r.Entry.Delay != 0 || !r.Entry.At.IsZero() {
		return optionsf("Delay and At are not for recurring tasks: Cron says when")
	}
	ordered, err := q.Ordered(ctx)
	if err != nil {
		return err
	}
	stored, err := newRow(q.name, r.Entry, ordered)
	if err != nil {
		return err
	}
	if !fitsEscaped([]row{stored}, q.packet()) { // the statement here and those of workers contain its text
		return q.error("schedule in", &notify.TooLargeError{What: "task", Size: 2*stored.size + aroundRow, Limit: q.packet()})
	}
	var text string
	if err := q.db.Pool().GetContext(ctx, &text, "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)"); err != nil {
		return q.error("schedule in", err)
	}
	now, err := parseTime(text)
	if err != nil {
		return q.error("schedule in", err)
	}
	next := nextDue(times, now)
	if next.IsZero() {
		return optionsf("Cron %q: it is never due", r.Cron)
	}
	var key any
	if r.Entry.Unique != "" {
		key = r.Entry.Unique
	}
	payload := r.Entry.Payload
	if payload == nil {
		payload = []byte{}
	}
	_, err = q.execute(ctx, "INSERT INTO "+schema.ScheduleTable+
		" (queue, name, cron, next_at, priority, retries, unique_key, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"+
		" ON DUPLICATE KEY UPDATE next_at = IF(cron = VALUES(cron), next_at, VALUES(next_at)), cron = VALUES(cron),"+
		" priority = VALUES(priority), retries = VALUES(retries), unique_key = VALUES(unique_key), payload = VALUES(payload)",
		q.name, r.Name, r.Cron, next.UTC().Format(timeLayout), r.Entry.Priority, retriesOf(r.Entry.Retries), key, payload)
	if err != nil {
		return q.error("schedule in", err)
	}
	q.changed() // workers must know the due time
	return nil
}

// Unschedule deletes a recurring task, and reports whether it existed.
func (q *Queue) Unschedule(ctx context.Context, name string) (was bool, err error) {
	if _, err := q.Ordered(ctx); err != nil {
		return false, err
	}
	n, err := q.execute(ctx, "DELETE FROM "+schema.ScheduleTable+" WHERE queue = ? AND name = ?", q.name, name)
	return n > 0, q.error("unschedule in", err)
}

// Schedules returns the queue's recurring tasks, by name, with the next due time of each.
func (q *Queue) Schedules(ctx context.Context) ([]Recurring, error) {
	if _, err := q.Ordered(ctx); err != nil {
		return nil, err
	}
	rows, err := q.db.Pool().QueryContext(ctx, "SELECT name, cron, CAST(next_at AS CHAR), priority, retries, unique_key, payload FROM "+
		schema.ScheduleTable+" WHERE queue = ? ORDER BY name", q.name)
	if err != nil {
		return nil, q.error("read the schedules of", err)
	}
	defer rows.Close()
	var all []Recurring
	for rows.Next() {
		var s Recurring
		var next string
		var key sql.NullString
		e := &s.Entry
		if err := rows.Scan(&s.Name, &s.Cron, &next, &e.Priority, &e.Retries, &key, &e.Payload); err != nil {
			return nil, q.error("read the schedules of", err)
		}
		if s.Next, err = parseTime(next); err != nil {
			return nil, q.error("read the schedules of", err)
		}
		e.Unique = key.String
		if e.Retries == 0 {
			e.Retries = noRetries
		}
		all = append(all, s)
	}
	return all, q.error("read the schedules of", rows.Err())
}

// parseCron parses a cron expression. Its times are UTC unless it names a zone.
func parseCron(text string) (cron.Schedule, error) {
	if (strings.HasPrefix(text, "TZ=") || strings.HasPrefix(text, "CRON_TZ=")) && !strings.Contains(text, " ") { // the library panics
		return nil, errors.New("a schedule must follow the zone: TZ=Europe/Berlin 0 3 * * *")
	}
	times, err := cron.ParseStandard(text)
	if err != nil {
		return nil, err
	}
	if every, is := strings.CutPrefix(text, "@every "); is { // the library rounds less than a second up
		if d, err := time.ParseDuration(every); err == nil && d < time.Second {
			return nil, errors.New("at most once a second")
		}
	}
	return times, nil
}

// enterDue enters the recurring tasks that are due, and returns how many.
func (l *store) enterDue(ctx context.Context) (entered int, err error) {
	for {
		n, more, err := l.enterNext(ctx)
		entered += n
		if err != nil || !more {
			return entered, err
		}
	}
}

// enterNext enters one recurring task, unless none is due. A recurring task that can't be entered here is
// skipped from then on, so that it delays nothing else: another worker's host may know its zone. One whose unique key is locked is
// skipped for a while.
func (l *store) enterNext(ctx context.Context) (entered int, more bool, err error) {
	err = l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		entered, more = 0, false
		var name, expression, now string
		var key sql.NullString
		e := Entry{}
		known, args := l.known()
		for name, until := range l.locked {
			if time.Now().Before(until) {
				known += " AND name <> ?"
				args = append(args, name)
			} else {
				delete(l.locked, name)
			}
		}
		query := "SELECT name, cron, CAST(UTC_TIMESTAMP(6) AS CHAR), priority, retries, unique_key, payload FROM " + schema.ScheduleTable +
			" WHERE queue = ? AND next_at <= UTC_TIMESTAMP(6)" + known + " ORDER BY next_at LIMIT 1 FOR UPDATE"
		if l.skip {
			query += " SKIP LOCKED"
		}
		if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
			return err
		}
		found := conn.QueryRowContext(ctx, query, append([]any{l.queue}, args...)...)
		switch err := found.Scan(&name, &expression, &now, &e.Priority, &e.Retries, &key, &e.Payload); {
		case errors.Is(err, sql.ErrNoRows):
			_, err := conn.ExecContext(ctx, "COMMIT")
			return err
		case err != nil:
			return err
		}
		more = true
		e.Unique = key.String
		if e.Retries == 0 {
			e.Retries = noRetries
		}
		next, err := nextTime(expression, now)
		r, wrong := newRow(l.queue, e, l.ordered)
		if err := cmp.Or(err, wrong); err != nil {
			l.unknown = append(l.unknown, [2]string{name, expression})
			l.log.WarnContext(ctx, "a recurring task can't be entered here, and is skipped", "name", name, "cron", expression, "error", err)
			return rollback(ctx, conn)
		}
		if l.ordered {
			if _, err := readSettings(ctx, conn, l.queue, " FOR UPDATE"); err != nil {
				return errors.Join(err, rollback(ctx, conn))
			}
		}
		if _, err := enter(ctx, conn, l.queue, []row{r}, math.MaxInt); err != nil {
			if !server.Is(err, server.ErrLockWaitTimeout) {
				return err
			}
			// A transaction has the unique key locked. The next call skips the task, so that it delays no other; this one ends, because each
			// attempt has waited for 2 s.
			l.locked[name], more = time.Now().Add(lockedFor), false
			return rollback(ctx, conn)
		}
		entered = 1
		if _, err := conn.ExecContext(ctx, "UPDATE "+schema.ScheduleTable+" SET next_at = ? WHERE queue = ? AND name = ?",
			next, l.queue, name); err != nil {
			return err
		}
		_, err = conn.ExecContext(ctx, "COMMIT")
		return err
	})
	return entered, more, err
}

// known returns the part of a WHERE that excludes the recurring tasks that can't be entered here.
func (l *store) known() (and string, args []any) {
	for _, u := range l.unknown {
		and += " AND NOT (name = ? AND cron = ?)"
		args = append(args, u[0], u[1])
	}
	return and, args
}

// lockedFor is how long a recurring task whose unique key was locked is skipped. Every attempt waits for the lock for 2 s.
const lockedFor = 10 * time.Second

func rollback(ctx context.Context, conn *sqlx.Conn) error {
	_, err := conn.ExecContext(ctx, "ROLLBACK")
	return err
}

// nextTime returns the next due time after now, by the server's clock. A schedule that is
// never due again gets a time in the year 9999.
func nextTime(expression, now string) (string, error) {
	times, err := parseCron(expression)
	if err != nil {
		return "", err
	}
	at, err := parseTime(now)
	if err != nil {
		return "", err
	}
	next := nextDue(times, at)
	if next.IsZero() {
		return "9999-12-31 00:00:00", nil
	}
	return next.UTC().Format(timeLayout), nil
}
