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
	// defaultRetries is the meaning of 0.
	defaultRetries = 5
	// noRetries makes a task dead when its first attempt fails.
	noRetries = -1
)

const (
	maxUnique = 255 // characters
	// maxDelay keeps times in the range of a DATETIME.
	maxDelay = 100 * 365 * 24 * time.Hour
	// noTime is the state_at of a task that is ready.
	noTime = "'1970-01-01 00:00:00'"
	// timeLayout is the layout of a DATETIME(6) or TIMESTAMP(6) as text, in UTC.
	timeLayout = "2006-01-02 15:04:05.000000"
)

// Entry is a task to enter into a queue.
type Entry struct {
	// Payload may be any bytes. nil and empty both mean an empty payload.
	Payload []byte
	// Priority determines the order: smaller numbers come first, and 0 is
	// the default. Tasks of the same priority are claimed in the order of their ids. A busy worker
	// finds a task that comes before its last claim within 50 ms, or within 2 s while an old
	// snapshot, for example of a backup, slows down that search. The range is -32768 to 32767;
	// an ordered queue allows only 0.
	Priority int
	// Delay is the time from now, by the server's clock, before which the task is not claimed.
	// At is the same as an absolute time; give at most one of them. 0, the default, means at once. An
	// ordered queue allows neither.
	Delay time.Duration
	At    time.Time
	// Unique is a key. The task is not entered if the queue has a task with the same key that is neither done nor
	// dead. A key costs three statements, in a
	// transaction. Of tasks that are entered together, those with keys get the last ids, except in an
	// ordered queue. At most 255 characters; empty, the default, means none.
	Unique string
	// Retries is how often the task is tried again after its first attempt has failed. 0 means
	// 5. -1 means none; such a task is also not begun again after its worker has vanished.
	Retries int
}

// row is an Entry in its stored form.
type row struct {
	values string // its part of VALUES
	args   []any
	unique string
	size   int
}

// newRow checks the entry and returns its row.
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
		return row{}, optionsf("At %v: outside the range of a DATETIME", e.At)
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

// aroundRow is the number of bytes of a packet that are left for the rest of a statement, and for the other columns of a row that is
// read, above all the last error.
const aroundRow = 10 << 10

// fits returns an error if the row does not fit into a packet of the server. index is its index in the call, packet the size in bytes.
func (r row) fits(index, packet int) error {
	if r.size+aroundRow > packet {
		return &notify.TooLargeError{What: "task", Index: index, Size: r.size + aroundRow, Limit: packet}
	}
	return nil
}

// fitsEscaped reports whether the rows fit into a statement even if the driver must put a backslash before every byte.
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

// batches splits the rows into statements that fit into a packet. A row with a unique key has a statement of its own,
// because only then it is known whether it was entered.
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

// inserting returns the indexes of the rows in the order of insertion. Rows with a unique
// key come last, sorted by key, so that all transactions with the same keys wait for them in the same order.
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
