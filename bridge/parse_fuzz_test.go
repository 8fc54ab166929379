package bridge

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/redact"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// FuzzURLs checks that every URL of a destination or an origin is either accepted or a notify.ErrOptions without the password.
func FuzzURLs(f *testing.F) {
	for _, seed := range []string{
		"nats://u:hidden-word@h:4222/x?subject=a", "redis://:hidden-word@h/0?stream=s&maxlen=5", "amqp://u:hidden-word@h/v?exchange=e", "mqtt://h:1883/t?qos=1",
		"kafka://a,b/t?key=k", "https://h/p?secret=whsec_aGlkZGVuLXdvcmQ=", "file:///x?size=1", "exec:cat%20x", "stdout:", "tls://h", "//", ":",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, err := Parse(text, "orders")
		_, fromErr := parseOrigin(text, "orders")
		for _, err := range []error{err, fromErr} {
			if err != nil && strings.Contains(text, ":hidden-word@") {
				require.NotContains(t, err.Error(), "hidden-word")
			}
			require.True(t, err == nil || errors.Is(err, notify.ErrOptions), err)
		}
		_ = redact.URL(text)
	})
}

// FuzzTopicHeaders checks that the headers of an imported message become valid UTF-8, and that none has a reserved name.
func FuzzTopicHeaders(f *testing.F) {
	f.Add("kind", "paid", `{"a":"b"}`)
	f.Add("mqnotify-headers", `{"MQNOTIFY-retry":"g/1"}`, "")
	f.Add("\xff", "\xff", `{"mqnotify-id":"1","\u0000":""}`)
	f.Fuzz(func(t *testing.T, name, value, packed string) {
		got := topicHeaders(producer.Message{Headers: map[string]string{name: value, fieldHeaders: packed}})
		for name, value := range got.Headers {
			require.False(t, ours(name), name)
			require.True(t, utf8.ValidString(name+value))
		}
	})
}
