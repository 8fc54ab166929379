package waiting

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/server"
)

func TestParseGTIDs(t *testing.T) {
	for text, want := range map[string][]gtids{
		"":                                nil,
		"a:1":                             {{"a", 1, 1}},
		"a:1-5:7":                         {{"a", 1, 5}, {"a", 7, 7}},
		"a:1-3,\nb:2:9223372036854775806": {{"a", 1, 3}, {"b", 2, 2}, {"b", 9223372036854775806, 9223372036854775806}},
		"a:1-5:jobs:1-2:4:_x:1, b:jobs:3": {{"a", 1, 5}, {"a:jobs", 1, 2}, {"a:jobs", 4, 4}, {"a:_x", 1, 1}, {"b:jobs", 3, 3}},
	} {
		all, err := parseGTIDs(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, all, text)
	}
	for _, text := range []string{"a", "a:", ":", ",", "a:1,", "a:1-", "a:1-x", "a:1x", "a:1::2", "a:18446744073709551616"} {
		_, err := parseGTIDs(text)
		require.Error(t, err, text)
	}
}

// What is waited for while a server goes through these sets.
func TestGTIDNext(t *testing.T) {
	type step struct {
		executed, next string
		sure           bool
	}
	for name, test := range map[string]struct {
		caps  server.Capabilities
		steps []step
	}{
		"a primary": {server.Capabilities{}, []step{
			{"u:1-5", "u:6", true}, {"u:1-5", "u:6", true}, {"u:1-9", "u:10", true},
		}},
		"a new server": {server.Capabilities{}, []step{{"", "u:1", false}, {"", "u:1", false}, {"u:1", "u:2", true}}},
		"gaps are filled": {server.Capabilities{}, []step{
			{"u:1-5:100", "u:6", true}, {"u:1-6:100", "u:7", true}, {"u:1-100", "u:101", true},
		}},
		"its begin is missing": {server.Capabilities{}, []step{{"u:5-9", "u:1", true}, {"u:1:5-9", "u:2", true}}},
		"other origins, its own grows": {server.Capabilities{}, []step{
			{"a:1-7, u:1-5", "u:6", true}, {"a:1-8, u:1-6", "u:7", true},
		}},
		"a replica": {server.Capabilities{ReadOnly: true}, []step{
			{"a:1-7, u:1-5", "u:6", false}, {"a:1-7, u:1-5", "u:6", false}, {"a:1-8, u:1-5", "a:9", true},
			{"a:1-9, u:1-5", "a:10", true},
			{"a:1-9, b:1, u:1-5", "b:2", true},     // another primary
			{"a:1-9, b:1, u:1-6", "u:7", true},     // its own turn
			{"a:1-10, b:1-2, u:1-6", "a:11", true}, // one of them
		}},
		"a group's blocks": {server.Capabilities{GroupReplication: true}, []step{
			{"g:1-40:1000001-1000005", "u:1", false}, {"g:1-40:1000001-1000006", "g:1000007", true},
			{"g:1-41:1000001-1000006", "g:42", true},
		}},
		"tags": {server.Capabilities{}, []step{
			{"u:1-5", "u:6", true}, {"u:1-5:jobs:1", "u:jobs:2", true}, {"u:1-5:jobs:1-2", "u:jobs:3", true},
			{"u:1-6:jobs:1-2", "u:7", true},
		}},
		"a reset": {server.Capabilities{}, []step{{"a:1-3, u:1-5", "u:6", true}, {"", "u:1", true}, {"u:1", "u:2", true}}},
	} {
		t.Run(name, func(t *testing.T) {
			test.caps.ServerUUID = "U"
			now := newGTIDNext(&test.caps)
			before := ""
			for i, want := range test.steps {
				changed, err := now.see(want.executed)
				require.NoError(t, err)
				assert.Equal(t, i > 0 && want.executed != before, changed, "%+v", want)
				assert.Equal(t, want, step{want.executed, now.gtid(), now.sure})
				before = want.executed
			}
		})
	}
	next := newGTIDNext(&server.Capabilities{ServerUUID: "u"})
	_, err := next.see("nonsense")
	require.Error(t, err)
}
