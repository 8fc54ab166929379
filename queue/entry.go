package queue

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/mqnotify/mqnotify/internal/name"
	"github.com/mqnotify/mqnotify/notify"
)

// Retries of an Entry.
const (
	// defaultRetries is what 0 means.
	defaultRetries = 5
	// noRetries makes a task dead when its first attempt fails.
	noRetries = -1
)

const (
	maxUnique = 255 // characters
	// maxDelay is what a DATETIME can still say.
	maxDelay = 100 * 365 * 24 * time.Hour
	// noTime is the state_at of a task that is ready.
	noTime = "'1970-01-01 00:00:00'"
	// timeLayout is a DATETIME(6) or TIMESTAMP(6) as text, in UTC.
	timeLayout = "2006-01-02 15:04:05.000000"
)

// Entry is a task to be entered into a queue.
type Entry struct {
	// Payload may be any bytes. nil and empty are the same: an empty payload.
	Payload []byte
	// Priority decides who is next: a smaller number is before a larger one, and 0 is
	// the default. Tasks of the same are claimed in the order of their ids. A busy worker
	// sees within 50 ms a task that comes before the one it claimed last, and within 2 s while an old
	// snapshot, of a backup perhaps, makes that search slow. From -32768 to 32767;
	// an ordered queue has 0 alone.
	Priority int
	// Delay is how long from now, by the server's clock, the task is not to be claimed.
	// At is the same as a time; give one of them. 0, the default, is at once. An
	// ordered queue has neither.
	Delay time.Duration
	At    time.Time
	// Unique is a key that the queue has once among its tasks that are neither done nor
	// dead: the task is not entered when there is one. It costs three statements, in a
	// transaction. Of tasks that are entered together, these have the last ids, but in an
	// ordered queue. At most 255 characters; empty, the default, is none.
	Unique string
	// Retries is how often the task is tried again after its first attempt has failed. 0 means
	// 5, -1 none: then it is not begun again when its worker has vanished, either.
	Retries int
}

// row is an Entry as it is stored.
type row struct {
	values string // what stands in VALUES
	args   []any
	unique string
	size   int
}

// newRow checks the entry and makes a row of it.
func newRow(queue string, e Entry, ordered bool) (row, error) {
	switch {
	case e.Priority < math.MinInt16 || e.Priority > math.MaxInt16:
		return row{}, optionsf("Priority %d: from %d to %d", e.Priority, math.MinInt16, math.MaxInt16)
	case e.Retries < noRetries || e.Retries > math.MaxInt32:
		return row{}, optionsf("Retries %d: 0 or more, or -1 for none", e.Retries)
	case e.Delay < 0 || e.Delay > maxDelay:
		return row{}, optionsf("Delay %v: 0 or more, 100 years at most", e.Delay)
	case e.Delay != 0 && !e.At.IsZero():
		return row{}, optionsf("Delay and At: give one of them")
	case !e.At.IsZero() && (e.At.Year() < 1000 || e.At.Year() > 9000):
		return row{}, optionsf("At %v: out of what a DATETIME can say", e.At)
	case ordered && (e.Priority != 0 || e.Delay != 0 || !e.At.IsZero()):
		return row{}, optionsf("Priority, Delay and At are not for an ordered queue, where each task follows the one before")
	}
	if e.Unique != "" {
		if problem := name.Problem(e.Unique, maxUnique); problem != "" {
			return row{}, optionsf("Unique %.80q: %s", e.Unique, problem)
		}
	}
	state, order, at := stateReady, e.Priority, noTime
	var when []any
	switch {
	case e.Delay != 0:
		state, order, at, when = stateScheduled, 0, "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND", []any{e.Delay.Microseconds()}
	case !e.At.IsZero():
		state, order, at, when = stateScheduled, 0, "?", []any{e.At.UTC().Format(timeLayout)}
	}
	var key any
	if e.Unique != "" {
		key = e.Unique
	}
	payload := e.Payload
	if payload == nil {
		payload = []byte{}
	}
	args := append([]any{queue, state, order}, when...)
	return row{
		values: "(?, ?, ?, " + at + ", ?, ?, ?, ?)",
		args:   append(args, e.Priority, retriesOf(e.Retries), key, payload),
		unique: e.Unique,
		size:   len(payload) + len(e.Unique) + len(queue) + 100,
	}, nil
}

// aroundRow is how many bytes of a packet are left for what else stands in a statement, and in a row that is read: the last error above all.
const aroundRow = 10 << 10

// fits returns an error if the row, the index-th of its call, fits into no packet, of the server's size in bytes.
func (r row) fits(index, packet int) error {
	if r.size+aroundRow > packet {
		return &notify.TooLargeError{What: "task", Index: index, Size: r.size + aroundRow, Limit: packet}
	}
	return nil
}

// fitsEscaped reports whether the rows fit into a statement if the driver must put a backslash before every byte.
func fitsEscaped(rows []row, packet int) bool {
	size := 0
	for _, r := range rows {
		size += 2 * r.size
	}
	return size+aroundRow <= packet
}

func retriesOf(retries int) int {
	switch retries {
	case 0:
		return defaultRetries
	case noRetries:
		return 0
	}
	return retries
}

// batches are rows that go into a statement each, whose size is at most that of a packet. One with a unique key has its own,
// so that it can be told from the others whether it was entered.
func batches(rows []row, packet int) (all [][]row) {
	const mostRows = 1000
	size, mostBytes := 0, min(1<<20, (packet-aroundRow)/2)
	for i, r := range rows {
		last := len(all) - 1
		if i == 0 || r.unique != "" || rows[i-1].unique != "" || len(all[last]) == mostRows || size+r.size > mostBytes {
			all = append(all, nil)
			last, size = len(all)-1, 0
		}
		all[last] = append(all[last], r)
		size += r.size
	}
	return all
}

// inserting are the rows' positions in the order in which they are inserted: those with a unique
// key last, by their keys, so that all who enter the same keys wait for them in the same order.
func inserting(rows []row) []int {
	order := make([]int, len(rows))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return strings.Compare(rows[a].unique, rows[b].unique) })
	return order
}

func insertStatement(rows []row) (query string, args []any) {
	values := make([]string, len(rows))
	for i, r := range rows {
		values[i] = r.values
		args = append(args, r.args...)
	}
	return insertInto + strings.Join(values, ", "), args
}
