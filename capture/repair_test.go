package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// A changed type makes no write fail, Status shows it, and Repair makes the triggers for the new types and columns. Each change is
// captured once.
func TestRepairAfterAlter(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE parts (id INT PRIMARY KEY, code INT, at DATETIME)")
		_, err := Install(t.Context(), db, "parts", Options{})
		require.NoError(t, err)
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO parts VALUES (1, 7, '2024-07-01 12:00:00')",
			"ALTER TABLE parts MODIFY code VARCHAR(10) FIRST, MODIFY at VARBINARY(20), ADD note TEXT", "UPDATE parts SET code = '007', at = X'FF'")
		old := `{"id":1,"code":7,"at":"2024-07-01T12:00:00Z"}`
		assert.Equal(t, []string{
			"insert null " + old,
			`update {"id":1,"code":"7","at":"MjAyNC0wNy0wMSAxMjowMDowMA=="} {"id":1,"code":"007","at":"/w=="}`,
		}, changes(t, db, "parts_changes"))
		for _, state := range states(t, db, "parts") {
			assert.Len(t, state.Changed, 2)
			assert.Contains(t, state.Changed[0], "code from int")
			assert.Contains(t, state.Changed[0], "to varchar(10)")
			assert.Equal(t, []string{"note"}, state.Missed)
			assert.True(t, state.Reordered)
			assert.True(t, state.Stale)
			assert.False(t, state.Broken)
		}
		for again := range 3 {
			made, err := Repair(t.Context(), db, "parts", Options{})
			require.NoError(t, err)
			require.Len(t, made, 3)
			now := states(t, db, "parts")
			require.Len(t, now, 3)
			for _, state := range now {
				assert.Equal(t, []string{"code", "id", "at", "note"}, state.Columns)
				assert.Empty(t, state.Changed)
				assert.False(t, state.Stale || state.Reordered)
			}
			mysqltest.Exec(t, db.Pool(), "UPDATE parts SET note = ?", fmt.Sprint(again))
			lines := changes(t, db, "parts_changes")
			require.Len(t, lines, 3+again)
			assert.Contains(t, lines[2+again], fmt.Sprintf(`{"code":"007","id":1,"at":"/w==","note":"%d"}`, again))
		}
	})
}

func states(t *testing.T, db *notify.DB, name string) []State {
	t.Helper()
	all, err := Status(t.Context(), db, name)
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

// To drop or rename a column: leave it out by a repair, change the table, repair. In this order no write fails.
func TestRepairWithout(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), orders)
		_, err := Install(t.Context(), db, "orders", Options{})
		require.NoError(t, err)
		_, err = Repair(t.Context(), db, "orders", Options{Without: []string{"paid"}})
		require.NoError(t, err)
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO orders (id, name) VALUES (1, 'a')", "ALTER TABLE orders CHANGE paid settled BOOL NOT NULL DEFAULT FALSE",
			"UPDATE orders SET name = 'b'")
		_, err = Repair(t.Context(), db, "orders", Options{})
		require.NoError(t, err)
		mysqltest.ExecAll(t, db.Pool(), "UPDATE orders SET settled = TRUE")
		assert.Equal(t, []string{
			`insert null {"id":1,"name":"a"}`,
			`update {"id":1,"name":"a"} {"id":1,"name":"b"}`,
			`update {"id":1,"name":"b","settled":0} {"id":1,"name":"b","settled":1}`,
		}, changes(t, db, "orders_changes"))

		// A column that is dropped without that makes writes fail, until a repair.
		if _, err := db.Pool().ExecContext(t.Context(), "ALTER TABLE orders DROP settled"); err == nil {
			_, err := db.Pool().ExecContext(t.Context(), "INSERT INTO orders (id) VALUES (2)")
			require.Error(t, err)
			_, err = Repair(t.Context(), db, "orders", Options{})
			require.NoError(t, err)
		}
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO orders (id) VALUES (2)")
		_, err = Repair(t.Context(), db, "orders", Options{Without: []string{"nam"}})
		require.ErrorContains(t, err, "did you mean `name`")
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE other (id INT)")
		_, err = Repair(t.Context(), db, "other", Options{})
		require.ErrorIs(t, err, ErrNotCaptured)
	})
}

// A column that was left out while its type was changed is captured again by a repair with an empty Without, in its earlier place if
// the columns were chosen.
func TestRepairWithoutNone(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, chosen := range [][]string{nil, {"due", "id"}} {
			db := open(t, s.Database(t))
			mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE bills (id INT PRIMARY KEY, due DATETIME NOT NULL)")
			_, err := Install(t.Context(), db, "bills", Options{Columns: chosen})
			require.NoError(t, err)
			_, err = Repair(t.Context(), db, "bills", Options{Without: []string{"due"}})
			require.NoError(t, err)
			for range 2 { // the second time after the type has changed
				state := states(t, db, "bills")[0]
				assert.Equal(t, []string{"id"}, state.Columns)
				assert.Equal(t, []string{"due"}, state.Missed)
				assert.False(t, state.Stale)
				mysqltest.Exec(t, db.Pool(), "ALTER TABLE bills MODIFY due TIMESTAMP NOT NULL")
			}
			_, err = Repair(t.Context(), db, "bills", Options{})
			require.NoError(t, err)
			mysqltest.ExecAll(t, db.Pool(), "INSERT INTO bills VALUES (1, '2026-01-02 12:00:00')")
			_, err = Repair(t.Context(), db, "bills", Options{Without: []string{}})
			require.NoError(t, err)
			state := states(t, db, "bills")[0]
			assert.Empty(t, state.Missed)
			mysqltest.ExecAll(t, db.Pool(), "DELETE FROM bills")
			lines := changes(t, db, "bills_changes")
			assert.Equal(t, `insert null {"id":1}`, lines[0])
			assert.Contains(t, lines[1], `"due":"2026-01-02`)
			if chosen != nil {
				assert.Equal(t, chosen, state.Columns)
			}
		}
	})
}

// A table that is swapped for another takes its triggers with it. Status shows this for both names, and Repair moves them back.
func TestRepairAfterSwap(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), orders)
		_, err := Install(t.Context(), db, "orders", Options{Columns: []string{"name", "id"}, Into: "log"})
		require.NoError(t, err)
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE _orders_new LIKE orders", "ALTER TABLE _orders_new ADD note TEXT",
			"RENAME TABLE orders TO _orders_old, _orders_new TO orders", "INSERT INTO orders (id) VALUES (1)")
		assert.Empty(t, changes(t, db, "log"), "a swap ends the capture")
		for _, name := range []string{"orders", "_orders_old", ""} {
			all := states(t, db, name)
			require.Len(t, all, 3)
			for _, state := range all {
				assert.True(t, state.Moved && state.Stale)
				assert.Equal(t, "_orders_old", state.Table)
				assert.Equal(t, "orders", state.MadeFor)
			}
		}
		_, err = Install(t.Context(), db, "orders", Options{})
		require.ErrorAs(t, err, new(*TriggerExistsError))
		require.ErrorContains(t, err, "mqnotify capture repair orders")
		_, err = Repair(t.Context(), db, "orders", Options{})
		require.NoError(t, err)
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO orders (id) VALUES (2)", "INSERT INTO _orders_old (id) VALUES (3)")
		assert.Equal(t, []string{`insert null {"name":null,"id":2}`}, changes(t, db, "log"))
		for _, state := range states(t, db, "") {
			assert.False(t, state.Stale)
			assert.Equal(t, "orders", state.Table)
			assert.Equal(t, []string{"paid", "note"}, state.Missed)
		}
		mysqltest.ExecAll(t, db.Pool(), "RENAME TABLE orders TO bought") // no other takes its place
		_, err = Repair(t.Context(), db, "bought", Options{})
		require.NoError(t, err)
		assert.False(t, states(t, db, "bought")[0].Moved)
		mysqltest.ExecAll(t, db.Pool(), "RENAME TABLE bought TO b1", "CREATE TABLE bought LIKE b1")
		removed, err := Remove(t.Context(), db, "bought", Options{})
		require.NoError(t, err)
		assert.Len(t, removed, 3)
	})
}

// While programs write, columns are added, changed, left out and dropped, a tool that copies triggers swaps the table, and snapshots
// are made, stopped and continued. The messages reproduce the table, both from the beginning and from a snapshot's first id.
func TestRepairUnderLoad(t *testing.T) {
	mysqltest.NotShort(t, "TestSnapshotUnderLoad and TestRepairAfterAlter")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := withState(t, s)
		began := time.Now()
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE parts (id INT PRIMARY KEY, name VARCHAR(20), n INT, gone INT)")
		_, err := Install(t.Context(), db, "parts", Options{})
		require.NoError(t, err)
		var done atomic.Int64
		var writers sync.WaitGroup
		failed := make(chan error, 4)
		total := int64(mysqltest.Many(500, 1_000, 100_000))
		ctx := t.Context()
		for w := range 4 {
			writers.Go(func() {
				random := mysqltest.RandomOf(fmt.Sprint(t.Name(), w))
				for n := done.Add(1); n <= total; n = done.Add(1) {
					id := random.IntN(50)
					statement := fmt.Sprintf([]string{
						"INSERT INTO parts (id, name, n) VALUES (%[1]d, 'new %[2]d', %[2]d) ON DUPLICATE KEY UPDATE n = %[2]d",
						"UPDATE parts SET name = 'w %[2]d' WHERE id = %[1]d",
						"UPDATE parts SET id = id + 1 WHERE id = %[1]d",
						"DELETE FROM parts WHERE id = %[1]d",
					}[random.IntN(4)], id, n)
					err := server.Again(ctx, func(err error) bool {
						return server.Retryable(err) || server.Is(err, server.ErrNoSuchTable, server.ErrTableDefChanged)
					}, func() error {
						_, err := db.Pool().ExecContext(ctx, statement)
						return err
					})
					if err != nil && !server.Is(err, server.ErrDuplicate) {
						failed <- fmt.Errorf("%s: %w", statement, err)
						return
					}
				}
			})
		}
		snapshots := snapshotsUntil(t, db, func() bool { return done.Load() >= total })
		at := func(share float64) {
			mysqltest.Eventually(t, "the writers get on", func() bool { return float64(done.Load()) >= share*float64(total) || len(failed) > 0 })
		}
		repair := func(o Options) {
			o.Logger = quiet
			_, err := Repair(ctx, db, "parts", o)
			require.NoError(t, err)
		}
		at(0.1)
		mysqltest.Exec(t, db.Pool(), "ALTER TABLE parts ADD note TEXT FIRST")
		repair(Options{})
		at(0.3)
		mysqltest.Exec(t, db.Pool(), "ALTER TABLE parts MODIFY n VARCHAR(20)")
		repair(Options{Without: []string{"gone"}})
		at(0.5)
		mysqltest.Exec(t, db.Pool(), "ALTER TABLE parts DROP gone")
		at(0.7)
		swapWithTriggers(t, db)
		repair(Options{})
		writers.Wait()
		select {
		case err := <-failed:
			t.Fatal(err)
		default:
		}
		for _, state := range states(t, db, "") {
			assert.False(t, state.Stale)
		}
		want, whole := contents(t, db), mysqltest.Receive(t, snapshots)
		assert.Equal(t, want, replayed(t, db, 0))
		for _, p := range whole[max(0, len(whole)-3):] {
			assert.Equal(t, want, replayed(t, db, p.From), "from %d on", p.From)
		}
		t.Logf("%d changes, %d messages, %d snapshots, %v", total, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM parts_changes"), len(whole),
			time.Since(began).Round(time.Millisecond))
	})
}

// snapshotsUntil makes snapshots of the table parts until enough, and then one more. It stops some of them.
func snapshotsUntil(t *testing.T, db *notify.DB, enough func() bool) <-chan []Progress {
	return mysqltest.Result(func() (whole []Progress) {
		random := mysqltest.RandomOf(t.Name() + " snapshots")
		for last := false; !last; {
			last = enough()
			ctx, stop := context.WithCancel(t.Context())
			left := 1 + random.IntN(30)
			p, err := Snapshot(ctx, db, "parts", SnapshotOptions{Logger: quiet, Report: func(Progress) {
				if left--; left == 0 {
					stop()
				}
			}})
			stop()
			switch {
			case err == nil:
				whole = append(whole, p)
			case errors.Is(err, context.Canceled), errors.Is(err, notify.ErrNoTable), server.Is(err, server.ErrNoSuchTable): // for a moment, while it is swapped
				last = false
			default:
				t.Error(err)
				return whole
			}
		}
		return whole
	})
}

// swapWithTriggers rebuilds the table parts under a lock and swaps it, and copies its triggers under other names, as gh-ost's --include-triggers
// and pt-online-schema-change's --preserve-triggers do.
func swapWithTriggers(t *testing.T, db *notify.DB) {
	t.Helper()
	conn, err := db.Pool().Connx(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	mysqltest.ExecAll(t, conn, setMode, "CREATE TABLE parts_new LIKE parts", "ALTER TABLE parts_new ADD extra INT")
	var copies []string
	for i, state := range states(t, db, "parts") {
		row := make(map[string]any)
		require.NoError(t, conn.QueryRowxContext(t.Context(), "SHOW CREATE TRIGGER "+ident.Quote(state.Trigger)).MapScan(row))
		_, body, _ := strings.Cut(string(row["SQL Original Statement"].([]byte)), " FOR EACH ROW")
		copies = append(copies, fmt.Sprintf("CREATE TRIGGER copied_%d AFTER %s ON parts_new FOR EACH ROW %s", i, state.Op, body))
	}
	mysqltest.ExecAll(t, conn, "LOCK TABLES parts WRITE, parts_new WRITE", "INSERT INTO parts_new (note, id, name, n) SELECT note, id, name, n FROM parts")
	mysqltest.ExecAll(t, conn, copies...)
	mysqltest.ExecAll(t, conn, "ALTER TABLE parts RENAME parts_old", "ALTER TABLE parts_new RENAME parts", "UNLOCK TABLES")
}

// contents returns the rows of the table parts by key.
func contents(t *testing.T, db *notify.DB) map[string]string {
	t.Helper()
	rows := make(map[string]string)
	for _, line := range mysqltest.Values[string](t, db.Pool(), "SELECT CONCAT_WS('|', id, name, n) FROM parts") {
		key, rest, _ := strings.Cut(line, "|")
		rows[key] = rest
	}
	return rows
}

// replayed returns the rows that result from the messages from an id on.
func replayed(t *testing.T, db *notify.DB, from uint64) map[string]string {
	t.Helper()
	rows := make(map[string]string)
	var messages []struct{ Key, Payload string }
	require.NoError(t, db.Pool().SelectContext(t.Context(), &messages, `SELECT JSON_UNQUOTE(JSON_EXTRACT(headers, '$.key')) AS `+"`key`"+`, payload
		FROM parts_changes WHERE id >= ? ORDER BY id`, from))
	for _, m := range messages {
		var c struct {
			Op  string                 `json:"op"`
			New *struct{ Name, N any } `json:"new"`
		}
		require.NoError(t, json.Unmarshal([]byte(m.Payload), &c))
		if c.Op == "delete" {
			delete(rows, m.Key)
			continue
		}
		rows[m.Key] = fmt.Sprint(c.New.Name, "|", c.New.N)
	}
	return rows
}
