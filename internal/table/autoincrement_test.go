package table

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestNextAutoIncrementIsFresh(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, engine := range []string{"InnoDB", "MyISAM"} {
			conn := open(t, s.Database(t))
			mysqltest.ExecAll(t, conn, "CREATE TABLE t (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY) ENGINE="+engine)
			table := describe(t, conn, "t")
			for _, step := range []struct {
				statement string
				want      uint64
			}{
				{"DO 0", 1}, // new
				{"INSERT INTO t VALUES (), (), ()", 4},
				{"DELETE FROM t", 4}, // emptied
				{"TRUNCATE TABLE t", 1},
				{"INSERT INTO t VALUES (41)", 42},
				{"INSERT INTO t VALUES (18446744073709551613)", math.MaxUint64 - 1},
			} {
				mysqltest.ExecAll(t, conn, step.statement)
				next, known, err := NextAutoIncrement(testContext(t), conn, table)
				require.NoError(t, err)
				assert.True(t, known, step.statement)
				assert.Equal(t, step.want, next, "%s %s", engine, step.statement)
			}
		}
	})
}

func TestNextAutoIncrementOfNone(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		conn := open(t, s.Database(t))
		mysqltest.ExecAll(t, conn, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (5)")
		table := describe(t, conn, "t")
		_, known, err := NextAutoIncrement(testContext(t), conn, table)
		require.NoError(t, err)
		assert.False(t, known)

		mysqltest.ExecAll(t, conn, "DROP TABLE t")
		_, _, err = NextAutoIncrement(testContext(t), conn, table)
		assert.ErrorIs(t, err, ErrNoTable)
	})
}
