package bridge

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/producer"
)

// After an import, a row again has the headers that the destination could not store under their own names. None of them replaces
// a header of the message or one of the bridge's.
func TestImportHeaders(t *testing.T) {
	mysqltest.Once(t)
	row := map[string]string{"kind": "k", "cc": "all", "x-delay": "7", "größe": "ü", "mqnotify-id": "forged", "Mqnotify-Topic": "forged"}
	sent := map[string]string{}
	for _, f := range fields(consumer.Message{ID: 17, Topic: "orders", Headers: row}, amqpHeader) {
		sent[f.name] = f.value
	}
	require.NotContains(t, sent, "cc")
	got := topicHeaders(producer.Message{Headers: sent}).Headers
	require.JSONEq(t, `{"mqnotify-id":"forged","Mqnotify-Topic":"forged"}`, got[imported+fieldHeaders])
	delete(got, imported+fieldHeaders)
	require.Equal(t, map[string]string{
		"kind": "k", "cc": "all", "x-delay": "7", "größe": "ü", imported + fieldID: "17", imported + fieldTopic: "orders",
	}, got)

	taken := topicHeaders(producer.Message{Headers: map[string]string{"a": "own", fieldHeaders: `{"a":"packed","b":"2"}`}}).Headers
	require.Equal(t, map[string]string{"a": "own", "b": "2", imported + fieldHeaders: `{"a":"packed"}`}, taken)
	for _, other := range []string{"", "x", `["a"]`, `{"a":1}`} {
		m := producer.Message{Headers: map[string]string{fieldHeaders: other}}
		require.Equal(t, map[string]string{imported + fieldHeaders: other}, topicHeaders(m).Headers, "a value that no bridge wrote stays as it is")
	}
}
