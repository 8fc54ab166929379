package bridge

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// The error about a wrong URL says what is wrong, and contains none of its secrets.
func TestParseRefuses(t *testing.T) {
	mysqltest.Once(t)
	for url, want := range map[string]string{
		"":                                   "unknown scheme",
		"orders":                             "unknown scheme",
		"ftp://me:s3cret@host/":              "unknown scheme; write one of",
		"nats://me:s3cret@":                  "names no host",
		"nats://me:s3cret@host/?strem=x":     `unknown parameter "strem"; the known ones are`,
		"nats://host/path":                   "leave out the path",
		"nats://host/?stream=a.b":            "without dots",
		"nats://host/?stream=":               "without dots",
		"nats://host/?subject=a..b":          "without spaces",
		"nats://host/?subject=a.*":           "without spaces",
		"nats://host/?duplicates=soon":       "a duration such as",
		"redis://me:s3cret@host/x":           "database's number",
		"redis://host/?maxlen=-1":            "at least 0",
		"file:///":                           "names no file",
		"file://host/x":                      "file:///path",
		"file:///tmp/x?rotate=many":          "a size such as",
		"file:///tmp/x?rotate=99999999999GB": "a size such as",
		"exec:":                              "exec:PROGRAM",
		"kafka://me:s3cret@host/?tls=1":      "true or false",
		"mqtt://host/?retain=yes":            "true or false",
		"exec:load?x=1":                      "%3F",
		"nats://me:s3cret@ho st/":            "can't be read",
		"nats://me:s3%cret@host/":            "can't be read",
		"nats://s3cret@host/?x=1":            "unknown parameter",
		"nats://host/?x=%zz":                 "can't be read",
		"nats://host/?token=s3cret":          "unknown parameter",
		"redis://me:s3cret@host/?stream=a#b": "write it as %23",
		"file:///tmp/x#1.jsonl":              "write it as %23",
		"exec:load%20#1":                     "write it as %23",
		"https://host/s3cret#in":             "write it as %23",
	} {
		_, err := Parse(url, "orders")
		require.ErrorIs(t, err, notify.ErrOptions, url)
		assert.ErrorContains(t, err, want, url)
		require.NotContains(t, err.Error(), "s3cret", url)
	}
}

// A # in the URL of an import would cut its filter, and the import would wait for messages of another topic.
func TestParseRefusesCutFilters(t *testing.T) {
	mysqltest.Once(t)
	_, err := parseOrigin("mqtt://me:s3cret@host/?topic=shop/#", "orders")
	require.ErrorIs(t, err, notify.ErrOptions)
	require.ErrorContains(t, err, "write it as %23")
	require.NotContains(t, err.Error(), "s3cret")
	o, err := parseOrigin("mqtt://host/?topic=shop/%23", "orders")
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(o.Key, "shop/#"), o.Key)
}

// If a topic's name is not allowed at the broker, the URL must contain a name.
func TestParseForATopic(t *testing.T) {
	mysqltest.Once(t)
	_, err := Parse("nats://host", "my orders")
	require.ErrorContains(t, err, `stream="my orders"`)
	_, err = Parse("nats://host?stream=s&subject=t", "my orders")
	require.NoError(t, err)
	d, err := Parse("redis://:s3cret@host?stream=s", "my orders")
	require.NoError(t, err)
	require.True(t, d.Strict)
	require.Equal(t, "redis://:***@host?stream=s", d.Name)
	for _, url := range []string{"stdout", "stdout:", "-", "file:orders.jsonl", "exec:./load%20x"} {
		_, err := Parse(url, "orders")
		require.NoError(t, err, url)
	}
}

func TestPath(t *testing.T) {
	mysqltest.Once(t)
	for text, want := range map[string]string{
		"file:a%20b.jsonl": "a b.jsonl", "file:///a%20b": "/a b", "exec:///bin/a%2520b": "/bin/a%20b", "exec:./load%20x": "./load x",
	} {
		p, err := newParams(text, "orders")
		require.NoError(t, err)
		require.Equal(t, want, p.path(), text)
	}
	_, err := Parse("file:100%.jsonl", "orders")
	require.ErrorContains(t, err, "%25")
}
