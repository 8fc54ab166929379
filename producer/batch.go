package producer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/mqnotify/mqnotify/internal/header"
	"github.com/mqnotify/mqnotify/notify"
)

// row is a message as it is stored.
type row struct {
	headers string // JSON; empty for NULL
	payload []byte // not nil
}

// encode checks the messages and makes rows of them.
func encode(messages []Message) ([]row, error) {
	rows := make([]row, len(messages))
	for i, m := range messages {
		rows[i].payload = m.Payload
		if m.Payload == nil {
			rows[i].payload = []byte{} // the driver would make a NULL of nil
		}
		if len(m.Headers) == 0 {
			continue
		}
		for name, value := range m.Headers {
			if !utf8.ValidString(name) || !utf8.ValidString(value) { // Marshal would change it without a word
				return nil, fmt.Errorf("message %d of %d: header %q is not UTF-8: move it into the payload",
					i+1, len(messages), name)
			}
			if header.Reserved(name) {
				return nil, fmt.Errorf("message %d of %d: header %q: %w: names that begin with %s are mqnotify's; take another",
					i+1, len(messages), name, notify.ErrOptions, header.Prefix)
			}
		}
		headers, err := json.Marshal(m.Headers)
		if err != nil {
			return nil, fmt.Errorf("message %d of %d: encode the headers: %w", i+1, len(messages), err)
		}
		rows[i].headers = string(headers)
	}
	return rows, nil
}

// around is more than what a row's values have around them in a statement (quotes,
// a character set, parentheses, commas), and than what a packet has around those.
const around = 64

// size is how many bytes of a packet the row takes in a prepared statement.
func (r row) size() int { return len(r.headers) + len(r.payload) + around }

// escaped is how many bytes of a statement the row takes at the worst, when the
// driver must put a backslash before each.
func (r row) escaped() int { return 2*(len(r.headers)+len(r.payload)) + around }

const (
	defaultBatchRows  = 1000
	defaultBatchBytes = 4 << 20
	// The driver prepares what it can't write into the statement, and a prepared
	// statement takes 65,535 parameters.
	maxBatchRows = 32_000
)

// batchLimits are the most rows of a statement, and its most bytes as it is sent.
type batchLimits struct{ rows, bytes int }

// newBatchLimits are those of the options, and no more than the driver sends (0:
// whatever the server takes). It would prepare a longer statement, whose parameters
// then may not fit either.
func newBatchLimits(o Options, driver int) (batchLimits, error) {
	limits := batchLimits{o.BatchRows, o.BatchBytes}
	if limits.rows == 0 {
		limits.rows = defaultBatchRows
	}
	if limits.bytes == 0 {
		limits.bytes = defaultBatchBytes
	}
	if limits.rows < 0 || limits.rows > maxBatchRows {
		return limits, fmt.Errorf("BatchRows of %d: 1 to %d, or 0 for %d", o.BatchRows, maxBatchRows, defaultBatchRows)
	}
	if limits.bytes < 0 {
		return limits, errors.New("BatchBytes is negative: 0 means 4 MiB")
	}
	if driver > 0 {
		limits.bytes = min(limits.bytes, driver)
	}
	return limits, nil
}

// statement is one INSERT.
type statement struct {
	rows []row
	// prepared sends the values apart from the statement, unescaped, and in parts where
	// one packet can't hold them: three round trips instead of one.
	prepared bool
}

// fit returns an error when a row fits into no packet.
func fit(rows []row, packet int) error {
	for i, r := range rows {
		if r.size() >= packet {
			return &notify.TooLargeError{What: "message", Index: i, Size: r.size(), Limit: packet}
		}
	}
	return nil
}

// split makes statements of rows that fit, in their order, each of which fits into
// a packet whatever its payloads are.
func split(into string, rows []row, batch batchLimits, packet int) []statement {
	var statements []statement
	room := min(batch.bytes, packet) - around - len(into)
	for start := 0; start < len(rows); {
		end, size := start, 0
		for end < len(rows) && end-start < batch.rows && size+rows[end].escaped() <= room {
			size += rows[end].escaped()
			end++
		}
		if end > start {
			statements = append(statements, statement{rows: rows[start:end]})
			start = end
			continue
		}
		statements = append(statements, statement{rows: rows[start : start+1], prepared: true})
		start++
	}
	return statements
}

// sql is the statement's text and its values.
func (s statement) sql(into string) (string, []any) {
	var query strings.Builder
	query.Grow(len(into) + len(s.rows)*len("(NULL,?),"))
	query.WriteString(into)
	args := make([]any, 0, 2*len(s.rows))
	for i, r := range s.rows {
		if i > 0 {
			query.WriteByte(',')
		}
		if r.headers == "" {
			query.WriteString("(NULL,?)")
			args = append(args, r.payload)
		} else {
			query.WriteString("(?,?)")
			args = append(args, r.headers, r.payload) // a string: servers take no binary JSON
		}
	}
	return query.String(), args
}
