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

// row is a message in its stored form.
type row struct {
	headers string // JSON; empty for NULL
	payload []byte // not nil
}

// encode checks the messages and returns their rows.
func encode(messages []Message) ([]row, error) {
	rows := make([]row, len(messages))
	for i, m := range messages {
		rows[i].payload = m.Payload
		if m.Payload == nil {
			rows[i].payload = []byte{} // the driver would store nil as NULL
		}
		if len(m.Headers) == 0 {
			continue
		}
		for name, value := range m.Headers {
			if !utf8.ValidString(name) || !utf8.ValidString(value) { // Marshal would replace the bytes without an error
				return nil, fmt.Errorf("message %d of %d: header %q is not UTF-8: move it into the payload",
					i+1, len(messages), name)
			}
			if header.Reserved(name) {
				return nil, fmt.Errorf("message %d of %d: header %q: %w: names that begin with %s are reserved: use another",
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

// around is an upper bound for the bytes that surround the values of one row in a statement (quotes, a character set, parentheses,
// commas), and for the bytes that surround the statement in a packet.
const around = 64

// size returns how many bytes of a packet the row takes in a prepared statement.
func (r row) size() int { return len(r.headers) + len(r.payload) + around }

// escaped returns the most bytes that the row takes in a statement: the driver may put a backslash before each of its bytes.
func (r row) escaped() int { return 2*(len(r.headers)+len(r.payload)) + around }

const (
	defaultBatchRows  = 1000
	defaultBatchBytes = 4 << 20
	// The driver prepares a statement whose values it can't write into the text, and a prepared statement takes at most 65,535
	// parameters.
	maxBatchRows = 32_000
)

// batchLimits are the maximum rows and bytes of one statement.
type batchLimits struct{ rows, bytes int }

// newBatchLimits returns the limits of the options, with bytes bounded by the driver's maxAllowedPacket; 0 means that the driver uses
// the server's. The driver would prepare a longer statement, whose parameters might not fit either.
func newBatchLimits(o Options, driver int) (batchLimits, error) {
	limits := batchLimits{o.BatchRows, o.BatchBytes}
	if limits.rows == 0 {
		limits.rows = defaultBatchRows
	}
	if limits.bytes == 0 {
		limits.bytes = defaultBatchBytes
	}
	if limits.rows < 0 || limits.rows > maxBatchRows {
		return limits, fmt.Errorf("BatchRows is %d: it must be 1 to %d, or 0 for %d", o.BatchRows, maxBatchRows, defaultBatchRows)
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
	// prepared sends the values apart from the statement, unescaped, and in several packets if one can't hold them. This costs
	// three round trips instead of one.
	prepared bool
}

// fit returns an error if a row does not fit into a packet.
func fit(rows []row, packet int) error {
	for i, r := range rows {
		if r.size() >= packet {
			return &notify.TooLargeError{What: "message", Index: i, Size: r.size(), Limit: packet}
		}
	}
	return nil
}

// split makes statements of the rows, in their order. Each statement fits into a packet even if every byte must be escaped; a row
// that does not is sent prepared.
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

// sql returns the statement's text and its values.
func (s statement) sql(into string) (string, []any) {
	var query strings.Builder
	query.Grow(len(into) + len(s.rows)*len("(NULL,?),"))
	query.WriteString(into)
	args := make([]any, 0, 2*len(s.rows))
	for i, r := range s.rows {
		if i > 0 {
			query.WriteByte(',')
		}
		var payload any = r.payload
		if utf8.Valid(r.payload) {
			payload = string(r.payload) // a text, which the server converts for a column of another character set
		}
		if r.headers == "" {
			query.WriteString("(NULL,?)")
			args = append(args, payload)
		} else {
			query.WriteString("(?,?)")
			args = append(args, r.headers, payload) // headers as a string, because servers accept no binary JSON
		}
	}
	return query.String(), args
}
