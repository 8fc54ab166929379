package table

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestKeyColumn(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		conn := open(t, s.Database(t))
		for _, test := range []struct {
			definition string
			name       string // asked for
			want       string // the key
			err        error
			text       string // in the error
		}{
			{"(id INT AUTO_INCREMENT PRIMARY KEY)", "", "id", nil, ""},
			{"(a INT PRIMARY KEY, id TINYINT UNSIGNED AUTO_INCREMENT, KEY (id))", "", "id", nil, ""},
			{"(a INT NOT NULL, id INT AUTO_INCREMENT, PRIMARY KEY (a, id), KEY (id))", "", "id", nil, ""},
			{"(id INT NOT NULL PRIMARY KEY)", "", "id", nil, ""},
			{"(id INT AUTO_INCREMENT PRIMARY KEY) ENGINE=MEMORY", "", "id", nil, ""},
			{"(id INT AUTO_INCREMENT PRIMARY KEY) ENGINE=MEMORY", "ID", "id", nil, ""},
			{"(id INT AUTO_INCREMENT PRIMARY KEY, other BIGINT NOT NULL, KEY (other))", "other", "other", nil, ""},
			{"(id BIGINT NOT NULL, day DATE NOT NULL, PRIMARY KEY (id, day)) PARTITION BY HASH (TO_DAYS(day)) PARTITIONS 3", "id", "id", nil, ""},

			{"(id INT NOT NULL, n INT NOT NULL, PRIMARY KEY (id, n))", "", "", ErrNoKey, "has no integer key: name one with --id-column, such as `id`"},
			{"(id CHAR(36) PRIMARY KEY)", "", "", ErrNoKey, "has no integer key: name one with --id-column once an index begins with"},
			{"(id INT)", "", "", ErrNoKey, "has no integer key"},
			{"(id DECIMAL(9,0) PRIMARY KEY)", "", "", ErrNoKey, "has no integer key"},
			// It counts from 1 in every group of rows.
			{"(g INT NOT NULL, id INT AUTO_INCREMENT, PRIMARY KEY (g, id)) ENGINE=MyISAM", "", "", ErrNoKey, "such as `g`"},

			{"(id INT AUTO_INCREMENT PRIMARY KEY, at DATETIME NOT NULL, KEY (at))", "at", "", ErrNoKey, "column `at` of table"},
			{"(id INT AUTO_INCREMENT PRIMARY KEY, at DATETIME NOT NULL, KEY (at))", "at", "", ErrNoKey, "because it is not an integer but datetime: name one with --id-column, such as `id`"},
			{"(id INT AUTO_INCREMENT PRIMARY KEY, n INT, KEY (n))", "n", "", ErrNoKey, "may be NULL"},
			{"(id INT AUTO_INCREMENT PRIMARY KEY, n INT NOT NULL)", "n", "", ErrNoKey, "is not the first column of an index"},
			{"(id INT AUTO_INCREMENT PRIMARY KEY, n INT NOT NULL, KEY (n) USING HASH) ENGINE=MEMORY", "n", "", ErrNoKey, "can't be read in order"},

			{"(id INT AUTO_INCREMENT PRIMARY KEY, note TEXT)", "Idd", "", ErrNoColumn, "has no column `Idd` (did you mean `id`?); its columns are `id`, `note`"},
			{"(id INT AUTO_INCREMENT PRIMARY KEY, note TEXT)", "xyz", "", ErrNoColumn, "has no column `xyz`; its columns are `id`, `note`"},
		} {
			mysqltest.ExecAll(t, conn, "DROP TABLE IF EXISTS t", "CREATE TABLE t "+test.definition)
			key, err := describe(t, conn, "t").KeyColumn(test.name)
			if test.err != nil {
				assert.ErrorIs(t, err, test.err, test.definition)
				assert.ErrorContains(t, err, test.text, test.definition)
				assert.Empty(t, key)
				continue
			}
			require.NoError(t, err, test.definition)
			assert.Equal(t, test.want, key.Name, test.definition)
		}
	})
}

func TestHeadOfAHashIsNotCheap(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		conn := open(t, s.Database(t))
		mysqltest.ExecAll(t, conn, "CREATE TABLE hashed (id INT AUTO_INCREMENT PRIMARY KEY) ENGINE=MEMORY",
			"CREATE TABLE tree (id INT AUTO_INCREMENT, PRIMARY KEY (id) USING BTREE) ENGINE=MEMORY")
		assert.False(t, describe(t, conn, "hashed").CheapHead("id"))
		assert.True(t, describe(t, conn, "tree").CheapHead("id"))
	})
}

func TestView(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		conn := open(t, s.Database(t))
		mysqltest.ExecAll(t, conn, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, j JSON)", "CREATE VIEW v AS SELECT * FROM t")
		view := describe(t, conn, "v")
		assert.True(t, view.IsView)
		assert.Empty(t, view.Engine)
		assert.Len(t, view.Columns, 2)
		for _, name := range []string{"", "id"} {
			_, err := view.KeyColumn(name)
			assert.ErrorIs(t, err, ErrView)
			assert.EqualError(t, err, view.String()+" is a view and has no key to read it by: name the table behind it")
		}
		assert.False(t, view.IsMessageTable())

		system, err := Describe(testContext(t), conn, "information_schema", "TABLES")
		require.NoError(t, err)
		assert.True(t, system.IsView)
	})
}

func TestNearest(t *testing.T) {
	names := []string{"id", "created_at", "customer", "customer_id", "total", "ID2"}
	for name, want := range map[string][]string{
		"Id":          {"id"},
		"createdat":   {"created_at"},
		"cutsomer":    {"customer"}, // two letters changed places
		"customer_ix": {"customer_id"},
		"toatl":       {"total"},
		"x":           nil,
		"nothing":     nil,
	} {
		assert.Equal(t, want, nearest(name, names), name)
	}
}

func TestMessageListsFewNames(t *testing.T) {
	table := &Table{Schema: "d", Name: "wide"}
	for i := range 1000 {
		table.Columns = append(table.Columns, Column{Name: fmt.Sprintf("column_%d", i)})
	}
	_, err := table.Column("other")
	require.ErrorIs(t, err, ErrNoColumn)
	assert.ErrorContains(t, err, "`column_29` and 970 more")
	assert.NotContains(t, err.Error(), "`column_30`")
}
