package schema

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// modes are values of sql_mode that change the meaning of quotes and backslashes.
var modes = []string{"", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES", "ANSI,NO_BACKSLASH_ESCAPES,TRADITIONAL"}

// Each form sets the flag of its table, and of no other, at every event, whatever the
// table's name is and whatever the session's sql_mode was when the trigger was created.
func TestTriggers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, mode := range modes {
			t.Run("mode "+mode, func(t *testing.T) {
				config := s.Database(t)
				setUp := open(t, config)
				require.NoError(t, Init(t.Context(), setUp, odd...))
				exec(t, setUp, "INSERT INTO mqnotify_flag (topic, counter) VALUES ('another', 7)")
				config.Params = map[string]string{"sql_mode": "'" + mode + "'"}
				db := open(t, config)
				for i, table := range odd {
					form := []TriggerForm{TriggerCounter, TriggerRow}[i%2]
					for _, event := range []string{"insert", "Update", "DELETE"} {
						statement, err := Trigger(table, form, event)
						require.NoError(t, err)
						exec(t, db, statement)
						assert.Equal(t, "1", text(t, setUp, `SELECT COUNT(*) FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = DATABASE()
							AND TRIGGER_NAME = ? AND EVENT_OBJECT_TABLE = ? AND EVENT_MANIPULATION = ?`, TriggerName(table, event), table, strings.ToUpper(event)))
					}
					quoted := ident.Quote(table)
					counter := func() string {
						return text(t, setUp, "SELECT COALESCE(MAX(counter), 0) FROM mqnotify_flag WHERE topic = ?", table)
					}
					if form == TriggerCounter {
						exec(t, setUp, "INSERT INTO "+quoted+" (payload) VALUES ('a'), ('b')")
						assert.Equal(t, "2", counter(), table)
						exec(t, setUp, "UPDATE "+quoted+" SET payload = 'c'")
						assert.Equal(t, "4", counter(), table)
						exec(t, setUp, "DELETE FROM "+quoted)
						assert.Equal(t, "6", counter(), table)
						exec(t, setUp, "DELETE FROM "+quoted)
						assert.Equal(t, "6", counter(), "nothing was deleted")
						continue
					}
					for _, change := range []string{
						"INSERT INTO " + quoted + " (payload) VALUES ('a'), ('b')",
						"UPDATE " + quoted + " SET payload = 'c'",
						"DELETE FROM " + quoted,
					} {
						assert.Equal(t, "0", counter(), table)
						exec(t, setUp, change)
						assert.Equal(t, "1", counter(), table)
						exec(t, setUp, "DELETE FROM mqnotify_flag WHERE topic = ?", table)
					}
				}
				assert.Equal(t, "7", text(t, setUp, "SELECT counter FROM mqnotify_flag WHERE topic = 'another'"))
				assert.Equal(t, fmt.Sprint(len(odd)/2+1), text(t, setUp, "SELECT COUNT(*) FROM mqnotify_flag"))
			})
		}
	})
}

// A rolled-back change leaves no flag.
func TestTriggerRollsBack(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		require.NoError(t, Init(t.Context(), db, "orders"))
		for _, form := range []TriggerForm{TriggerCounter, TriggerRow} {
			statement, err := Trigger("orders", form, "insert")
			require.NoError(t, err)
			exec(t, db, statement)
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			exec(t, tx, "INSERT INTO orders (payload) VALUES ('x')")
			require.NoError(t, tx.Rollback())
			assert.Equal(t, "0", text(t, db, "SELECT COUNT(*) FROM mqnotify_flag"))
			exec(t, db, "DROP TRIGGER "+ident.Quote(TriggerName("orders", "INSERT")))
		}
	})
}

func TestTriggerRefusals(t *testing.T) {
	_, err := Trigger("orders", "flip", "insert")
	require.ErrorContains(t, err, `no trigger form "flip": counter or row`)
	_, err = Trigger("orders", TriggerRow, "select")
	require.ErrorContains(t, err, `"SELECT": insert, update or delete`)
}

func TestTriggerName(t *testing.T) {
	assert.Equal(t, "mqnotify_insert_orders", TriggerName("orders", "INSERT"))
	of := map[string]string{}
	for _, table := range append(odd, strings.Repeat("x", 64), strings.Repeat("x", 63)+"y", strings.Repeat("ä", 63)+"y") {
		for _, event := range []string{"INSERT", "UPDATE", "DELETE"} {
			name := TriggerName(table, event)
			require.NoError(t, ident.Check(name))
			assert.LessOrEqual(t, utf8.RuneCountInString(name), 64)
			assert.Empty(t, of[name], "%q and %q", of[name], event+table)
			of[name] = event + table
		}
	}
}

// Whatever the sql_mode is, a literal is read as the text that it was made from.
func TestLiteral(t *testing.T) {
	texts := append([]string{"", `\`, `\\`, `\'`, `'`, `''`, `"`, `\"`, "\n", `\n`, "%_", "`", "😀", "a\x00b"}, odd...)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, mode := range modes {
			config := s.Database(t)
			config.Params = map[string]string{"sql_mode": "'" + mode + "'"}
			db := open(t, config)
			for _, want := range texts {
				var got string
				require.NoError(t, db.QueryRowContext(context.Background(), "SELECT "+ident.Literal(want)).Scan(&got), "%q", want)
				assert.Equal(t, want, got, "sql_mode %s", mode)
			}
		}
	})
}
