package wake_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// MariaDB looks triggers up by the schema of their table. By TRIGGER_SCHEMA, which is the same, it opens the tables of every
// database of the server: with 40 databases of 35 tables that takes ten times as long.
const lookup = "information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = "

func TestTriggersOfOneDatabase(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if !s.IsMariaDB() {
			t.Skip("MySQL has a dictionary in tables")
		}
		db := open(t, s.Database(t))
		extra := func(query string) string {
			rows, err := db.Pool().Queryx("EXPLAIN " + query)
			require.NoError(t, err)
			defer rows.Close()
			require.True(t, rows.Next())
			row := map[string]any{}
			require.NoError(t, rows.MapScan(row))
			text, _ := row["Extra"].([]byte)
			return string(text)
		}
		require.Contains(t, extra("SELECT * FROM "+lookup+"DATABASE()"), "Scanned 1 database")
		require.Contains(t, extra("SELECT * FROM "+strings.Replace(lookup, "EVENT_OBJECT", "TRIGGER", 1)+"DATABASE()"), "Scanned all databases")
	})
}

// No statement of the module lists triggers in another way.
func TestTriggersAreLookedUp(t *testing.T) {
	t.Parallel()
	all, found := regexp.MustCompile(`information_schema\.TRIGGERS( t)?\s+(LEFT JOIN .*\s+)?WHERE (t\.)?([A-Z_]+)`), 0
	require.NoError(t, filepath.WalkDir(filepath.Join("..", ".."), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || strings.HasSuffix(path, "_test.go") || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".sql") {
			return err
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		statements := all.FindAllStringSubmatch(string(text), -1)
		require.Len(t, statements, strings.Count(string(text), "information_schema.TRIGGERS"), path)
		for _, statement := range statements {
			require.Equal(t, "EVENT_OBJECT_SCHEMA", statement[4], path)
			found++
		}
		return nil
	}))
	require.Positive(t, found)
}
