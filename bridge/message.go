package bridge

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/header"
)

// MessageID names a message wherever it goes: its topic and the row's id, such as
// "orders:17". A destination drops by it what it has, a receiver can do so too.
func MessageID(m consumer.Message) string { return m.Topic + ":" + strconv.FormatUint(m.ID, 10) }

// checkSame compares a message with one of its MessageID that the destination has, by when it was
// inserted, if both say it. A table of the same name in another database, and one that was emptied
// and counts from 1 again, give ids of other rows: those must not pass for sent.
func checkSame(m consumer.Message, createdAt string) error {
	there, err := time.Parse(time.RFC3339Nano, createdAt)
	if err != nil || m.CreatedAt.IsZero() || there.Equal(m.CreatedAt) {
		return nil //nolint:nilerr // it does not say, as a row of another table
	}
	return permanent(fmt.Errorf("%s is there already and is another row, of %s: is this a table of the same name in another "+
		"database, or was it emptied? It needs a destination of its own, or an empty one", MessageID(m), createdAt))
}

// The fields that say at a destination with headers what a message is. A row's own
// headers stand next to them under their own names.
const (
	fieldID        = "mqnotify-id"         // the row's id
	fieldTopic     = "mqnotify-topic"      // the table
	fieldCreatedAt = "mqnotify-created-at" // when the row was inserted; not for rows of other tables
	fieldMessageID = "mqnotify-message-id" // MessageID, where the destination has no name for it
	fieldHeaders   = "mqnotify-headers"    // a JSON object of the headers whose names can't be used there
)

// field is a name and a value.
type field struct{ name, value string }

// fields are a message's own fields and its headers, sorted. Headers for which fits
// says no are together in one: what a broker would take for an order to itself, or
// refuse, must not be lost, nor obeyed.
func fields(m consumer.Message, fits func(name, value string) bool) []field {
	all := make([]field, 0, 5+len(m.Headers)) // and one of the destination's
	all = append(all, field{fieldID, strconv.FormatUint(m.ID, 10)}, field{fieldTopic, m.Topic})
	if !m.CreatedAt.IsZero() {
		all = append(all, field{fieldCreatedAt, m.CreatedAt.Format(time.RFC3339Nano)})
	}
	if len(m.Headers) == 0 {
		return all
	}
	var rest map[string]string
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		value := m.Headers[name]
		switch {
		case !ours(name) && fits(name, value):
			all = append(all, field{name, value})
		case rest == nil:
			rest = map[string]string{name: value}
		default:
			rest[name] = value
		}
	}
	if rest != nil {
		all = append(all, field{fieldHeaders, packedHeaders(rest)})
	}
	return all
}

// packedHeaders is the value of mqnotify-headers.
func packedHeaders(headers map[string]string) string {
	text, _ := json.Marshal(headers) // strings never fail
	return ascii(text)
}

// ascii escapes in a JSON text what is no visible ASCII: some brokers refuse the rest.
func ascii(text []byte) string {
	var out strings.Builder
	for _, r := range string(text) {
		if r >= ' ' && r < 0x7f {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			_, _ = fmt.Fprintf(&out, "\\u%04x", unit) // a Builder takes all
		}
	}
	return out.String()
}

// ours reports whether a header would pass for one of the fields above.
func ours(name string) bool { return header.Reserved(name) }

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// token reports whether a header's name is a token in HTTP's sense, and its value one line
// of visible text.
func token(name, value string) bool {
	if name == "" || len(name) > 200 {
		return false
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`()<>@,;:\"/[]?={}`, c) >= 0 {
			return false
		}
	}
	for i, c := range []byte(value) {
		blank := c == ' '
		if c < ' ' || c == 0x7f || blank && (i == 0 || i == len(value)-1) { // which some would trim
			return false
		}
	}
	return true
}

// line is a message as a line of JSON, newline included: as `mqnotify consume`
// prints it, and with its id for a row of a table that is no message table.
func line(m consumer.Message) ([]byte, error) {
	if !m.IsRow {
		text, err := m.MarshalJSON()
		return append(text, '\n'), err
	}
	topic, err := json.Marshal(m.Topic)
	if err != nil {
		return nil, err
	}
	text := append(make([]byte, 0, len(m.Payload)+64), `{"id":`...)
	text = strconv.AppendUint(text, m.ID, 10)
	text = append(append(text, `,"topic":`...), topic...)
	text = append(append(text, `,"row":`...), m.Payload...)
	return append(text, "}\n"...), nil
}
