package consumer

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"
)

// Message is a row of a topic.
type Message struct {
	// ID is the row's key.
	ID uint64
	// Topic is the table's name.
	Topic string
	// CreatedAt is when the row was inserted, by the server's clock, in UTC; zero
	// for a table that is no message table.
	CreatedAt time.Time
	// Headers are nil when there are none.
	Headers map[string]string
	// Payload is never nil. For a table that is no message table it is the whole
	// row as a JSON object. It may be kept, and changed once it was handled: another
	// attempt, and the dead letters, get it as it is.
	Payload []byte
	// IsRow tells that the table is no message table.
	IsRow bool

	binary map[string]bool // the columns whose values are base64 in Payload; never changed

	// part is the partition, of those that a group's members share; passed for a message
	// that is another member's, or was handled.
	part int
	// retry is set for a row whose dead letter is tried again: it is done already, as the offset goes.
	retry bool
}

const passed = -1

// IsBase64 reports whether the value of the row's column is base64 in Payload, as those of BLOB and its kind are.
func (m Message) IsBase64(column string) bool { return m.binary[column] }

// MarshalJSON is the message on one line; a payload that is no UTF-8 is base64
// under "payload_base64". A row of a table that is no message table is its object.
func (m Message) MarshalJSON() ([]byte, error) {
	if m.IsRow {
		return m.Payload, nil
	}
	var out bytes.Buffer // which takes all
	out.Grow(len(m.Payload) + len(m.Payload)/8 + 256)
	out.WriteString(`{"id":`)
	out.WriteString(strconv.FormatUint(m.ID, 10))
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	fields := []struct {
		name  string
		value any
	}{
		{"topic", m.Topic},
		{"created_at", m.CreatedAt.Format("2006-01-02T15:04:05.000000Z07:00")},
		{"headers", m.Headers},
		{"payload", string(m.Payload)},
	}
	if m.Headers == nil {
		fields[2].value = struct{}{}
	}
	if !utf8.Valid(m.Payload) {
		fields[3].name, fields[3].value = "payload_base64", m.Payload
	}
	for _, field := range fields {
		out.WriteString(`,"` + field.name + `":`)
		if err := encoder.Encode(field.value); err != nil {
			return nil, err
		}
		out.Truncate(out.Len() - 1) // the newline after each value
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// marshal is json.Marshal without its detour for HTML.
func marshal(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}

// headers reads a headers column. Values that are no strings stay as their JSON
// text, and something that is no object is one header without a name: what other
// programs wrote is shown, not refused.
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

// parseTime reads "2026-11-21 13:36:28.123456", as a session in UTC shows a
// TIMESTAMP(6); a zero time for anything else, such as MySQL's zero date.
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
