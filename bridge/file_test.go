package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// readLines returns the messages in a file.
func readLines(t *testing.T, path string) (all []stored) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return parseLines(t, text)
}

func parseLines(t *testing.T, text []byte) (all []stored) {
	t.Helper()
	for l := range bytes.Lines(text) {
		require.Equal(t, byte('\n'), l[len(l)-1], "a line is cut")
		var m struct {
			ID      uint64
			Topic   string
			Headers map[string]string
			Payload *string
			Base64  []byte `json:"payload_base64"`
		}
		require.NoError(t, json.Unmarshal(l, &m), "%s", l)
		payload := string(m.Base64)
		if m.Payload != nil {
			payload = *m.Payload
		}
		all = append(all, stored{m.Topic + ":" + strconv.FormatUint(m.ID, 10), payload, m.Headers["traceparent"]})
	}
	return all
}

func TestFile(t *testing.T) {
	mysqltest.Once(t)
	folder := t.TempDir()
	conform(t, target{
		url:  func(topic string) string { return "file://" + filepath.Join(folder, topic+".jsonl") },
		read: func(t *testing.T, topic string) []stored { return readLines(t, filepath.Join(folder, topic+".jsonl")) },
		stop: nil, restart: nil, dedupes: true,
	})
}

// The sink begins a new file when the current one exceeds the size in rotate=. It recognizes rows at the end of the previous
// file.
func TestFileRotates(t *testing.T) {
	mysqltest.Once(t)
	path := filepath.Join(t.TempDir(), "f.jsonl")
	to := target{url: func(string) string { return "file://" + path + "?rotate=2KB&keep=2" }}
	sink := to.open(t, "t")
	all := messages("t", 1, 100)
	send(t, sink, all, 10)
	names, err := filepath.Glob(path + ".*")
	require.NoError(t, err)
	require.Len(t, names, 2)
	require.Less(t, names[0], names[1])
	var got []stored
	for _, name := range append(names, path) {
		part := readLines(t, name)
		got = append(got, part...)
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Less(t, info.Size(), int64(5000))
	}
	require.Equal(t, wanted(all)[100-len(got):], got, "the kept files have all messages in order")

	require.NoError(t, sink.Close())
	// The current file is now missing, so the sink starts a new one. It recognizes the rows at the end of the last rotated file.
	require.NoError(t, os.Rename(path, names[1]+"9"))
	last := readLines(t, names[1]+"9")
	send(t, to.open(t, "t"), all[90:], 10)
	require.NotEmpty(t, last)
	require.Empty(t, readLines(t, path))
}

// A page that is sent again after several rotations within it is recognized completely.
func TestFileRotatesInAPage(t *testing.T) {
	mysqltest.Once(t)
	path := filepath.Join(t.TempDir(), "f.jsonl")
	to := target{url: func(string) string { return "file://" + path + "?rotate=2KB" }}
	all := messages("t", 1, 100)
	sink := to.open(t, "t")
	send(t, sink, all, 10)
	require.NoError(t, sink.Close())
	names, err := filepath.Glob(path + ".*")
	require.NoError(t, err)
	require.Greater(t, len(names), 2)
	require.NotEmpty(t, readLines(t, path))
	send(t, to.open(t, "t"), messages("t", 1, 110), 10)
	names, err = filepath.Glob(path + ".*")
	require.NoError(t, err)
	var got []stored
	for _, name := range append(names, path) {
		got = append(got, readLines(t, name)...)
	}
	require.Equal(t, wanted(messages("t", 1, 110)), got)
}

// The sink removes a line that a crash has cut, and writes it again.
func TestFileTornLine(t *testing.T) {
	mysqltest.Once(t)
	path := filepath.Join(t.TempDir(), "f.jsonl")
	to := target{url: func(string) string { return "file://" + path }}
	all := messages("t", 1, 10)
	sink := to.open(t, "t")
	send(t, sink, all, 10)
	require.NoError(t, sink.Close())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text[:len(text)-7], 0o600))
	send(t, to.open(t, "t"), all[5:], 5)
	require.Equal(t, wanted(all), readLines(t, path))
}

// A row counts as stored only after an fsync. The sink writes rows again if their fsync failed, and syncs rows that it finds in
// the file before it confirms them.
func TestFileSync(t *testing.T) {
	was := fsync
	defer func() { fsync = was }()
	synced, fail := 0, false
	fsync = func(file *os.File) error {
		if fail {
			return errors.New("the disk has gone")
		}
		synced++
		return was(file)
	}
	path := filepath.Join(t.TempDir(), "f.jsonl")
	to := target{url: func(string) string { return "file://" + path }}
	all := messages("t", 1, 10)
	sink := to.open(t, "t")
	send(t, sink, all[:5], 5)
	fail = true
	n, err := sink.Send(t.Context(), all[5:])
	require.Zero(t, n)
	requireTransient(t, err)
	require.NoError(t, sink.Close())
	require.Equal(t, wanted(all[:5]), readLines(t, path))

	n, err = to.open(t, "t").Send(t.Context(), all[:5])
	require.Zero(t, n, "the rows are in the file, but perhaps not on the disk")
	requireTransient(t, err)
	fail, synced = false, 0
	send(t, to.open(t, "t"), all[:5], 5)
	require.Equal(t, 1, synced)
	require.Equal(t, wanted(all[:5]), readLines(t, path))
}

// A file has one writer. A second one fails until the first has closed the file. The sink does not mistake the ids in another
// topic's lines for its own.
func TestFileOfTwo(t *testing.T) {
	mysqltest.Once(t)
	path := filepath.Join(t.TempDir(), "f.jsonl")
	to := target{url: func(string) string { return "file://" + path + "?rotate=2KB" }}
	one, two := to.open(t, "one"), to.open(t, "two")
	send(t, one, messages("one", 1, 100), 10)
	for range 3 {
		n, err := two.Send(t.Context(), messages("two", 91, 110))
		require.Zero(t, n)
		requireTransient(t, err)
		require.ErrorContains(t, err, "another process writes to")
	}
	send(t, one, messages("one", 101, 110), 10)
	require.NoError(t, one.Close())
	send(t, two, messages("two", 91, 110), 5)
	var got []stored
	names, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	for _, name := range append(names[1:], path) {
		got = append(got, readLines(t, name)...)
	}
	require.Equal(t, wanted(append(messages("one", 1, 110), messages("two", 91, 110)...)), got)
}

// A row of any table becomes a line with its id.
func TestLineOfARow(t *testing.T) {
	mysqltest.Once(t)
	l, err := line(consumer.Message{ID: 17, Topic: `a"b`, IsRow: true, Payload: []byte(`{"no":17}`)})
	require.NoError(t, err)
	require.Equal(t, `{"id":17,"topic":"a\"b","row":{"no":17}}`+"\n", string(l))
}

// A file that can't be written is an error at the start, which makes no file.
func TestFileNotWritable(t *testing.T) {
	mysqltest.Once(t)
	folder := t.TempDir()
	open := func(path string) error {
		d, err := Parse("file://"+path, "t")
		require.NoError(t, err)
		sink, err := d.Open(t.Context())
		if err == nil {
			require.NoError(t, sink.Close())
		}
		return err
	}
	require.ErrorIs(t, open(filepath.Join(folder, "none", "f")), os.ErrNotExist)
	require.ErrorContains(t, open(folder), "is a directory")
	if runtime.GOOS == "linux" {
		require.Error(t, open("/sys/f"), "root can't make files there either")
	}
	require.NoError(t, open(filepath.Join(folder, "f")))
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, files)
}

// The sink makes a file that only its owner can read. It refuses a file that others can read, unless mode= in the URL allows it.
func TestFileMode(t *testing.T) {
	mysqltest.Once(t)
	path := filepath.Join(t.TempDir(), "f")
	open := func(query string) (Sink, error) {
		d, err := Parse("file://"+path+query, "t")
		require.NoError(t, err)
		return d.Open(t.Context())
	}
	for _, mode := range []os.FileMode{0o600, 0o640} {
		sink, err := open(fmt.Sprintf("?mode=%o", mode))
		require.NoError(t, err)
		_, err = sink.Send(t.Context(), []consumer.Message{{ID: 1, Topic: "t"}})
		require.NoError(t, err)
		require.NoError(t, sink.Close())
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm())
		if mode == 0o640 {
			_, err := open("")
			require.ErrorContains(t, err, "run chmod 600 "+path)
		}
		require.NoError(t, os.Remove(path))
	}
	_, err := Parse("file://"+path+"?mode=rw", "t")
	require.ErrorIs(t, err, notify.ErrOptions)
	creds := filepath.Join(t.TempDir(), "shop.creds")
	require.NoError(t, os.WriteFile(creds, nil, 0o600))
	_, err = Parse("nats://host/?creds="+creds, "t")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(creds, 0o644))
	_, err = Parse("nats://host/?creds="+creds, "t")
	require.ErrorContains(t, err, "run chmod 600 "+creds)
}

// Headers that can't have fields of their own are kept in one ASCII field.
func TestFieldsOfHeaders(t *testing.T) {
	mysqltest.Once(t)
	headers := map[string]string{"a\n": "ü😀\x7f\u2028", "mqnotify-id": "x"}
	all := fields(consumer.Message{ID: 1, Topic: "t", Headers: headers}, token)
	last := all[len(all)-1]
	require.Equal(t, fieldHeaders, last.name)
	require.True(t, token(last.name, last.value), last.value)
	var back map[string]string
	require.NoError(t, json.Unmarshal([]byte(last.value), &back))
	require.Equal(t, headers, back)
}
