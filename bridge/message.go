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

// MessageID returns the id of a message at every destination: its topic and the row's id, such as "orders:17". Destinations and
// receivers drop duplicates by it.
func MessageID(m consumer.Message) string { return m.Topic + ":" + strconv.FormatUint(m.ID, 10) }

// checkSame compares the creation times of a message and of the one with the same MessageID that the destination has, if both have a
// time. It returns an error if they differ. A table of the same name in another database, or one that was emptied and counts from 1
// again, gives the same ids to other rows, and these rows must not count as sent.
func checkSame(m consumer.Message, createdAt string) error {
	there, err := time.Parse(time.RFC3339Nano, createdAt)
	if err != nil || m.CreatedAt.IsZero() || there.Equal(m.CreatedAt) {
		return nil //nolint:nilerr // rows of tables that init did not make have no time
	}
	return permanent(fmt.Errorf("%s is there already and is another row, created at %s: if this is a table of the same name in another "+
		"database, or it was emptied, give it a destination of its own, or an empty one", MessageID(m), createdAt))
}

// The headers that a bridge adds to a message. The row's own headers have their own names.
const (
	fieldID        = "mqnotify-id"         // the row's id
	fieldTopic     = "mqnotify-topic"      // the table
	fieldCreatedAt = "mqnotify-created-at" // the row's creation time; only for rows of message tables
	fieldMessageID = "mqnotify-message-id" // MessageID, if the destination has no property of its own for it
	fieldHeaders   = "mqnotify-headers"    // a JSON object of the headers whose names the destination does not allow
)

type field struct{ name, value string }

// fields returns the bridge's headers and the row's headers, sorted. It packs the headers for which fits returns false into
// mqnotify-headers, because the destination would refuse them or obey them as instructions.
func fields(m consumer.Message, fits func(name, value string) bool) []field {
	all := make([]field, 0, 5+len(m.Headers)) // room for one more header of the destination
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

// packedHeaders returns the value of mqnotify-headers.
func packedHeaders(headers map[string]string) string {
	text, _ := json.Marshal(headers) // marshalling strings can't fail
	return ascii(text)
}

// ascii escapes all characters of a JSON text that are not visible ASCII, because some brokers refuse them.
func ascii(text []byte) string {
	var out strings.Builder
	for _, r := range string(text) {
		if r >= ' ' && r < 0x7f {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			_, _ = fmt.Fprintf(&out, "\\u%04x", unit) // a strings.Builder never fails
		}
	}
	return out.String()
}

// ours reports whether a header's name is reserved for mqnotify, such as those of the fields above.
func ours(name string) bool { return header.Reserved(name) }

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// token reports whether a header's name is an HTTP token, and its value one line of visible text.
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
		if c < ' ' || c == 0x7f || blank && (i == 0 || i == len(value)-1) { // some servers trim it
			return false
		}
	}
	return true
}

// line returns a message as a line of JSON, with the newline, in the form of `mqnotify consume`. A row of a table that is no message
// table is wrapped in an object with its id.
func line(m consumer.Message) ([]byte, error) {
	if !m.IsRow {
		text, err := m.MarshalJSON()
		return append(text, '\n'), err
	}
	topic, _ := json.Marshal(m.Topic) // marshalling a string can't fail
	text := append(make([]byte, 0, len(m.Payload)+64), `{"id":`...)
	text = strconv.AppendUint(text, m.ID, 10)
	text = append(append(text, `,"topic":`...), topic...)
	text = append(append(text, `,"row":`...), m.Payload...)
	return append(text, "}\n"...), nil
}
