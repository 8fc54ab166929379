package queue

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
)

// The condition of among matches exactly the ids, however they alternate with others, and a session that changes or
// deletes such rows does not lock the rows next to them.
func TestConditionOfIDs(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		const rows, ofWorker = 60, " AND attempts = 0 AND state = 'ready'"
		db, _ := database(t, s)
		enqueue(t, newQueue(t, db, Options{}), slices.Repeat([]string{"x"}, rows)...)
		random := mysqltest.Random(t)
		for range mysqltest.Many(15, 50, 500) {
			var chosen, others []uint64
			for id, in := uint64(1), false; id <= rows; id++ {
				if random.IntN(runFrom) == 0 {
					in = !in
				}
				if in {
					chosen = append(chosen, id)
				} else {
					others = append(others, id)
				}
			}
			if len(chosen) == 0 || len(others) == 0 {
				continue
			}
			shuffled := slices.Clone(chosen)
			random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			condition := among(shuffled)
			assert.Equal(t, chosen, mysqltest.Values[uint64](t, db.Pool(), "SELECT id FROM "+schema.TaskTable+" WHERE "+condition+" ORDER BY id"), condition)
			for _, statement := range []string{
				"UPDATE " + schema.TaskTable + byID + " SET owner = 'x' WHERE " + condition + ofWorker,
				"DELETE t FROM " + schema.TaskTable + " t" + byID + " WHERE " + condition + ofWorker,
			} {
				apart(t, db.Pool(), statement, others)
			}
		}
	})
}

// apart runs a statement in a transaction, while others have locked the rest of the rows, and asserts that it
// waits for none of them, and keeps none of them locked.
func apart(t *testing.T, pool *sqlx.DB, statement string, others []uint64) {
	t.Helper()
	begin := func() *sqlx.Tx {
		tx, err := pool.BeginTxx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		require.NoError(t, err)
		return tx
	}
	texts := strings.Fields(strings.Trim(fmt.Sprint(others), "[]"))
	rest := "SELECT id FROM " + schema.TaskTable + byID + " WHERE id IN (" + strings.Join(texts, ",") + ") FOR UPDATE SKIP LOCKED"
	theirs, ours := begin(), begin()
	assert.Equal(t, others, mysqltest.Values[uint64](t, theirs, rest))
	_, err := ours.ExecContext(t.Context(), statement)
	require.NoError(t, err, statement)
	require.NoError(t, theirs.Rollback())
	assert.Equal(t, others, mysqltest.Values[uint64](t, pool, rest), statement)
	require.NoError(t, ours.Rollback())
}
