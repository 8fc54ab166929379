package consumer

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Messages are delivered as they were stored, whatever their bytes are.
func TestMessages(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		payloads := []string{"", "\x00", "\xff\xfe", "text", strings.Repeat("long", 100_000), "ünï", "", `{"a": 1}`}
		conn := newConn(t, db)
		onConn(t, conn, "SET time_zone = '+03:00'")
		for _, payload := range payloads {
			_, err := conn.ExecContext(t.Context(), "INSERT INTO orders (created_at, headers, payload) VALUES ('2026-01-31 08:09:10.123456', ?, ?)",
				`{"a": "b"}`, []byte(payload))
			require.NoError(t, err)
		}
		onConn(t, conn, "SET sql_mode = ''", "INSERT INTO orders (created_at, payload) VALUES ('0000-00-00', 'no time')")
		var got collected
		require.NoError(t, run(t, db, "orders", Options{From: "beginning", StopAtEnd: true}, got.handler()).wait(t))
		require.Equal(t, append(payloads, "no time"), got.payloads())
		for i, m := range got.all[:len(payloads)] {
			require.Equal(t, uint64(i+1), m.ID)
			require.Equal(t, "orders", m.Topic)
			require.Equal(t, time.Date(2026, 1, 31, 5, 9, 10, 123456000, time.UTC), m.CreatedAt)
			require.Equal(t, map[string]string{"a": "b"}, m.Headers)
			require.NotNil(t, m.Payload)
			require.False(t, m.IsRow)
		}
		last := got.all[len(payloads)]
		require.Zero(t, last.CreatedAt)
		require.Nil(t, last.Headers)

		// Messages that share memory do not overwrite each other.
		for i := range got.all {
			got.all[i].Payload = append(got.all[i].Payload, "more"...)
		}
		for i, payload := range payloads {
			require.Equal(t, payload+"more", string(got.all[i].Payload))
		}
	})
}

// A payload column of a text type works as well.
func TestTextPayload(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "ALTER TABLE orders MODIFY payload VARCHAR(100) CHARACTER SET utf8mb4 NOT NULL")
		insert(t, db, "orders", "", "größer")
		var got collected
		require.NoError(t, run(t, db, "orders", Options{From: "beginning", StopAtEnd: true}, got.handler()).wait(t))
		require.Equal(t, []string{"", "größer"}, got.payloads())
	})
}

func TestMessageJSON(t *testing.T) {
	for want, m := range map[string]Message{
		`{"id":1,"topic":"orders","created_at":"2026-01-31T08:09:10.000000Z","headers":{},"payload":""}`: {
			ID: 1, Topic: "orders", CreatedAt: time.Date(2026, 1, 31, 8, 9, 10, 0, time.UTC), Payload: []byte{},
		},
		`{"id":18446744073709551615,"topic":"a\"b","created_at":"0001-01-01T00:00:00.000000Z","headers":{"k":"<v>"},"payload":"<&>\u0000"}`: {
			ID: 1<<64 - 1, Topic: `a"b`, Headers: map[string]string{"k": "<v>"}, Payload: []byte("<&>\x00"),
		},
		`{"id":2,"topic":"orders","created_at":"0001-01-01T00:00:00.000000Z","headers":{},"payload_base64":"/w=="}`: {
			ID: 2, Topic: "orders", Payload: []byte{0xff},
		},
		`{"n":1}`: {ID: 3, Topic: "shop", IsRow: true, Payload: []byte(`{"n":1}`)},
	} {
		line, err := m.MarshalJSON()
		require.NoError(t, err)
		require.Equal(t, want, string(line))
		require.True(t, json.Valid(line))
	}
}

// Headers that other programs wrote are shown in any form, not refused.
func TestHeaders(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"":                             nil,
		"null":                         nil,
		"{}":                           nil,
		`{"a": "b", "ü": "\u00e9"}`:    {"a": "b", "ü": "é"},
		`{"n": 1.50, "t": true}`:       {"n": "1.50", "t": "true"},
		`{"o": {"x": [1]}, "z": null}`: {"o": `{"x": [1]}`, "z": ""},
		`[1, 2]`:                       {"": "[1, 2]"},
		`"text"`:                       {"": `"text"`},
		`broken`:                       {"": "broken"},
	} {
		require.Equal(t, want, headers([]byte(text)), text)
	}
}

func TestParseTime(t *testing.T) {
	for text, want := range map[string]time.Time{
		"2026-11-21 13:36:28.123456": time.Date(2026, 11, 21, 13, 36, 28, 123456000, time.UTC),
		"1970-01-01 00:00:01.000000": time.Unix(1, 0).UTC(),
		"0000-00-00 00:00:00.000000": {},
		"":                           {},
		"2026-11-21":                 {},
	} {
		require.Equal(t, want, parseTime([]byte(text)), text)
	}
}

// A handler may keep messages, and later ones do not overwrite them: pages do not reuse memory.
func TestPayloadsMayBeKept(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		want := numbers(1, 3000)
		do(t, db, "INSERT INTO orders (payload) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT i FROM n",
			"INSERT INTO orders (payload) SELECT id + 900 FROM orders ORDER BY id", "INSERT INTO orders (id, payload) SELECT id + 10000, '' FROM orders LIMIT 1200")
		want = want[:1800]
		var kept []Message
		require.NoError(t, run(t, db, "orders", Options{From: "beginning", StopAtEnd: true, PageRows: 7}, Batch(func(_ context.Context, messages []Message) error {
			kept = append(kept, messages...)
			return nil
		})).wait(t))
		require.Len(t, kept, 3000)
		for i := range want {
			require.Equal(t, want[i], string(kept[i].Payload))
		}
	})
}
