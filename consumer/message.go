package consumer

import (
	"database/sql/driver"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/mqnotify/mqnotify/internal/header"
	"github.com/mqnotify/mqnotify/internal/table"
)

// Message is a row of a topic.
type Message struct {
	// ID is the row's key.
	ID uint64
	// Topic is the table's name.
	Topic string
	// CreatedAt is when the row was inserted, by the server's clock, in UTC. It is zero unless the table is a message table.
	CreatedAt time.Time
	// Headers is nil if there are none.
	Headers map[string]string
	// Payload is never nil. If the table is not a message table, it is the whole row as a JSON object. The handler may keep it.
	// It may change it only after the message was handled, because another attempt and the dead letters use the same bytes.
	Payload []byte
	// IsRow means that the table is not a message table.
	IsRow bool

	binary map[string]bool // the columns whose values are base64 in Payload; never changed

	// part is the message's partition in a shared group, or passed if the message belongs to another member or was handled.
	part int
	// retry is true for a row that is tried again after it was a dead letter. The offset counts it as done.
	retry bool
	// retryOf is the retryHeader of a message that is read by its columns, and so has no Headers.
	retryOf string
}

const passed = -1

// IsBase64 reports whether the value of the row's column is base64 in Payload, as those of BLOB and similar types are.
func (m Message) IsBase64(column string) bool { return m.binary[column] }

// IsRetry reports whether the message is a row whose dead letter is tried again. It then comes after rows with larger ids.
func (m Message) IsRetry() bool { return m.retry }

// MarshalJSON returns the message as JSON on one line. A payload that is not UTF-8 is base64 under "payload_base64". A row of a
// table that is not a message table is its JSON object.
func (m Message) MarshalJSON() ([]byte, error) {
	if m.IsRow {
		return m.Payload, nil
	}
	headers := []byte("{}")
	if m.Headers != nil {
		var err error
		if headers, err = header.Marshal(m.Headers); err != nil {
			return nil, err
		}
	}
	isText := utf8.Valid(m.Payload)
	size := len(m.Payload) + len(m.Payload)/8
	if !isText {
		size = base64.StdEncoding.EncodedLen(len(m.Payload))
	}
	line := make([]byte, 0, size+len(headers)+len(m.Topic)+128)
	line = strconv.AppendUint(append(line, `{"id":`...), m.ID, 10)
	line = table.AppendString(append(line, `,"topic":`...), []byte(m.Topic))
	line = m.CreatedAt.AppendFormat(append(line, `,"created_at":"`...), "2006-01-02T15:04:05.000000Z07:00")
	line = append(append(line, `","headers":`...), headers...)
	if isText {
		line = table.AppendString(append(line, `,"payload":`...), m.Payload)
	} else {
		line = append(base64.StdEncoding.AppendEncode(append(line, `,"payload_base64":"`...), m.Payload), '"')
	}
	return append(line, '}'), nil
}

// headers decodes a headers column. Values that are not strings stay as their JSON text. A column that is not an object becomes
// one header without a name, so that a message of any program can be read.
func headers(text []byte) map[string]string {
	if len(text) == 0 || string(text) == "null" || string(text) == "{}" {
		return nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return map[string]string{"": string(text)}
	}
	all := make(map[string]string, len(fields))
	for name, raw := range fields {
		var value string
		if err := json.Unmarshal(raw, &value); err != nil {
			value = string(raw)
		}
		all[name] = value
	}
	return all
}

// parseTime parses "2026-11-21 13:36:28.123456", as a session in UTC shows a TIMESTAMP(6). It returns the zero time for anything
// else, such as MySQL's zero date.
func parseTime(text []byte) time.Time {
	if len(text) != len("2006-01-02 15:04:05.000000") {
		return time.Time{}
	}
	number := func(from, to int) (n int) {
		for _, digit := range text[from:to] {
			n = n*10 + int(digit-'0')
		}
		return n
	}
	year, month, day := number(0, 4), number(5, 7), number(8, 10)
	if year == 0 {
		return time.Time{}
	}
	return time.Date(year, time.Month(month), day, number(11, 13), number(14, 16), number(17, 19),
		number(20, 26)*1000, time.UTC)
}

// toID converts a key from the driver's type.
func toID(value driver.Value) (uint64, error) {
	switch id := value.(type) {
	case int64:
		if id >= 0 {
			return uint64(id), nil
		}
	case uint64:
		return id, nil
	case []byte:
		return strconv.ParseUint(string(id), 10, 64)
	}
	return 0, fmt.Errorf("consumer: key %v is not a positive integer", value)
}

// page is the result of one read. Its messages share its memory.
type page struct {
	messages []Message
	full     bool // there may be more rows
	bytes    int
	arena    []byte
	doubtful bool // the encoding of a value depends on whether its column is JSON, which may have changed and is not in the result
}

// errEnough ends the reading of a result because the page is full.
var errEnough = errors.New("enough")

// keep copies a value that the driver overwrites at the next row.
func (p *page) keep(value []byte) []byte {
	p.bytes += len(value)
	if p.arena == nil || len(p.arena)+len(value) > cap(p.arena) {
		p.arena = make([]byte, 0, max(64<<10, len(value)))
	}
	from := len(p.arena)
	p.arena = append(p.arena, value...)
	return p.arena[from:len(p.arena):len(p.arena)]
}

// message decodes a row of a message table: id, created_at, headers, payload, and the partition in a shared group.
func message(topic string, values []driver.Value, p *page, shares *shares) (Message, error) {
	id, err := toID(values[0])
	if err != nil {
		return Message{}, err
	}
	part, err := shares.partOf(id, values[4:])
	if err != nil || part == passed {
		return Message{ID: id, part: part}, err
	}
	m := Message{ID: id, Topic: topic, part: part}
	if created, ok := values[1].([]byte); ok {
		m.CreatedAt = parseTime(created)
	}
	if text, ok := values[2].([]byte); ok {
		m.Headers = headers(text)
		p.bytes += len(text)
	}
	switch payload := values[3].(type) {
	case []byte:
		m.Payload = p.keep(payload)
	case string:
		m.Payload = p.keep([]byte(payload))
	default:
		m.Payload = []byte{}
	}
	return m, nil
}
