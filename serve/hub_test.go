package serve

import (
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A hub frees the memory of messages that it no longer keeps, even if it kept many small messages before.
func TestHubFreesMemory(t *testing.T) {
	mysqltest.Once(t)
	db, err := notify.Open("me@/shop") // it does not connect
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	server, err := New(db, Options{Topics: []string{"orders"}, BufferBytes: 1 << 20, Logger: quiet})
	require.NoError(t, err)
	h := server.topics["orders"].hub
	add := func(id uint64, payload string) {
		require.NoError(t, h.add([]consumer.Message{{ID: id, Topic: "orders", Payload: []byte(payload)}}))
	}
	for id := range uint64(300) {
		add(id+1, "small")
	}
	var all []weak.Pointer[byte]
	for id := range uint64(40) {
		add(id+301, strings.Repeat("x", 256<<10))
		all = append(all, weak.Make(&h.events[len(h.events)-1].json[0]))
	}
	runtime.GC()
	defer runtime.KeepAlive(h)
	kept := 0
	for _, pointer := range all {
		if pointer.Value() != nil {
			kept++
		}
	}
	assert.LessOrEqual(t, kept, 4+1, "4 messages of 256 KiB are 1 MiB; the array may still hold one that was dropped")
}

// A row that is not a message is a part of its page's memory. The hub keeps a copy, which takes no more than the row.
func TestHubCopiesRows(t *testing.T) {
	mysqltest.Once(t)
	db, err := notify.Open("me@/shop") // it does not connect
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	server, err := New(db, Options{Topics: []string{"stock"}, Logger: quiet})
	require.NoError(t, err)
	h := server.topics["stock"].hub
	page := weak.Make(new([64 << 10]byte))
	func() {
		memory := new([64 << 10]byte)
		page = weak.Make(memory)
		require.NoError(t, h.add([]consumer.Message{{ID: 1, Topic: "stock", IsRow: true, Payload: append(memory[:0:2], "{}"...)}}))
	}()
	runtime.GC()
	defer runtime.KeepAlive(h)
	require.Equal(t, "{}", string(h.events[0].json))
	require.Nil(t, page.Value())
}
