package waiting

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
)

// The GTIDs that are waited for while a server goes through these sets, in which u, a, b and g are servers.
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
		"its begin is missing": {server.Capabilities{}, []step{{"u:5-9", "u:1", false}, {"u:1:5-9", "u:2", true}}},
		"other origins, its own grows": {server.Capabilities{}, []step{
			{"a:1-7, u:1-5", "u:6", true}, {"a:1-8, u:1-6", "u:7", true},
		}},
		"a replica": {server.Capabilities{ReadOnly: true}, []step{
			{"a:1-7, u:1-5", "u:6", false}, {"a:1-7, u:1-5", "u:6", false}, {"a:1-8, u:1-5", "a:9", true},
			{"a:1-9, u:1-5", "a:10", true},
			{"a:1-9, b:1, u:1-5", "b:2", true},    // another primary
			{"a:1-9, b:1, u:1-6", "u:7", true},    // its own turn
			{"a:1-10, b:1-2, u:1-6", "b:3", true}, // one of them
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
			mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
				if s.IsMariaDB() {
					return // its GTIDs are others
				}
				session, err := connect(t.Context(), s.Database(t), readCommitted)
				require.NoError(t, err)
				defer session.close()
				uuid := func(text string) string {
					for _, name := range []string{"u", "a", "b", "g"} {
						text = regexp.MustCompile(`\b`+name+`:`).ReplaceAllString(text, fmt.Sprintf("%08x-1111-2222-3333-444444444444:", name[0]))
					}
					return text
				}
				test.caps.ServerUUID = strings.ToUpper(strings.TrimSuffix(uuid("u:"), ":"))
				session.caps = &test.caps
				now := newGTIDNext(session)
				before := ""
				for i, want := range test.steps {
					changed, err := now.see(uuid(want.executed))
					require.NoError(t, err)
					assert.Equal(t, i > 0 && want.executed != before, changed, "%+v", want)
					assert.Equal(t, uuid(want.next), now.gtid, "%+v", want)
					assert.Equal(t, want.sure, now.sure, "%+v", want)
					before = want.executed
				}
			})
		})
	}
	for _, set := range []string{"", "a", "a:", "a:x", "a:1,"} {
		_, err := following(set)
		require.Error(t, err, set)
	}
}
