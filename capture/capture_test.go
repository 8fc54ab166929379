package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

const orders = "CREATE TABLE orders (id INT PRIMARY KEY, name VARCHAR(100), paid BOOL NOT NULL DEFAULT FALSE) CHARACTER SET utf8mb4"

// Each change writes one message with the old and the new row. A change that is rolled back, or changes nothing, writes none.
func TestCapture(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), orders)
		plan, err := Install(t.Context(), db, "orders", Options{})
		require.NoError(t, err)
		assert.Equal(t, "orders_changes", plan.Topic)
		mysqltest.ExecAll(t, db.Pool(),
			`INSERT INTO orders (id, name) VALUES (1, 'a "b" \\ é😀'), (2, NULL)`,
			"UPDATE orders SET paid = TRUE WHERE id = 1",
			"UPDATE orders SET name = name", // changes nothing
			"UPDATE orders SET name = 'A' WHERE id = 2",
			"UPDATE orders SET name = 'a' WHERE id = 2", // equal to the collation, but not the same
			"INSERT INTO orders (id, name) VALUES (2, 'x') ON DUPLICATE KEY UPDATE name = 'y'",
			"REPLACE INTO orders (id, name) VALUES (2, 'z')",
			"DELETE FROM orders WHERE id = 1")
		tx, err := db.Pool().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO orders (id) VALUES (3)")
		require.NoError(t, err)
		require.NoError(t, tx.Rollback())
		first, paid := `{"id":1,"name":"a \"b\" \\ é😀","paid":0}`, `{"id":1,"name":"a \"b\" \\ é😀","paid":1}`
		second := func(name string) string { return `{"id":2,"name":` + name + `,"paid":0}` }
		assert.Equal(t, []string{
			"insert null " + first,
			"insert null " + second("null"),
			"update " + first + " " + paid,
			"update " + second("null") + " " + second(`"A"`),
			"update " + second(`"A"`) + " " + second(`"a"`),
			"update " + second(`"a"`) + " " + second(`"y"`),
			"delete " + second(`"y"`) + " null",
			"insert null " + second(`"z"`),
			"delete " + paid + " null",
		}, changes(t, db, "orders_changes"))

		removed, err := Remove(t.Context(), db, "orders", Options{})
		require.NoError(t, err)
		assert.Len(t, removed, 3)
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO orders (id) VALUES (9)")
		assert.Len(t, changes(t, db, "orders_changes"), 9)
		removed, err = Remove(t.Context(), db, "orders", Options{})
		require.NoError(t, err)
		assert.Empty(t, removed)
	})
}

// With Columns a message has only these, in this order, and an UPDATE of other columns writes no message.
func TestCaptureColumnsAndOps(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), orders)
		_, err := Install(t.Context(), db, "orders", Options{Ops: []string{"update"}, Columns: []string{"PAID", "id"}, Into: "payments"})
		require.NoError(t, err)
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO orders (id) VALUES (1)", "UPDATE orders SET name = 'x'", "UPDATE orders SET paid = TRUE", "DELETE FROM orders")
		assert.Equal(t, []string{`update {"paid":0,"id":1} {"paid":1,"id":1}`}, changes(t, db, "payments"))

		states, err := Status(t.Context(), db, "")
		require.NoError(t, err)
		require.Len(t, states, 1)
		assert.Equal(t, []string{"paid", "id"}, states[0].Columns)
		assert.Equal(t, []string{"name"}, states[0].Missed)
		assert.Equal(t, "payments", states[0].Topic)
		assert.Equal(t, "update", states[0].Op)
		assert.False(t, states[0].Broken)
	})
}

// Install fails if a trigger for the same change exists, ours or another, and names it. It makes nothing.
func TestTriggerExists(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), orders, "CREATE TRIGGER `the audit` AFTER UPDATE ON orders FOR EACH ROW SET @seen = COALESCE(@seen, 0) + 1",
			"CREATE TRIGGER earlier BEFORE INSERT ON orders FOR EACH ROW SET NEW.name = 'from before'")
		_, err := Install(t.Context(), db, "orders", Options{})
		var exists *TriggerExistsError
		require.ErrorAs(t, err, &exists)
		require.ErrorAs(t, err, new(*TriggerExistsError))
		assert.Equal(t, TriggerExistsError{"the audit", "orders", "update", false}, *exists)
		require.ErrorContains(t, err, "`the audit` runs already after UPDATE on `orders`")
		states, err := Status(t.Context(), db, "orders")
		require.NoError(t, err)
		assert.Empty(t, states)

		_, err = Install(t.Context(), db, "orders", Options{Beside: true})
		require.NoError(t, err)
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO orders (id) VALUES (1)", "UPDATE orders SET paid = TRUE")
		assert.Equal(t, []string{
			`insert null {"id":1,"name":"from before","paid":0}`,
			`update {"id":1,"name":"from before","paid":0} {"id":1,"name":"from before","paid":1}`,
		}, changes(t, db, "orders_changes"))

		_, err = Install(t.Context(), db, "orders", Options{Beside: true, Ops: []string{"delete"}})
		require.ErrorAs(t, err, &exists)
		assert.Equal(t, TriggerExistsError{"mqnotify_capture_delete_orders", "orders", "delete", true}, *exists)
		require.ErrorContains(t, err, "capture remove orders")
	})
}

// A wake trigger and a capture can be on the same table, in either order.
func TestWakeTriggers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.Exec(t, db.Pool(), orders)
		options := wake.Options{Events: []string{"insert", "update", "delete"}, Logger: mysqltest.Logger(t, slog.LevelInfo)}
		require.NoError(t, wake.Install(t.Context(), db, options, "orders"))
		_, err := Install(t.Context(), db, "orders", Options{})
		require.NoError(t, err)
		require.NoError(t, wake.Install(t.Context(), db, options, "orders", "orders_changes"))
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (id) VALUES (1)")
		assert.Len(t, changes(t, db, "orders_changes"), 1)
	})
}

// Trigger names are unique in a database. If another table's trigger has the name, Install fails and drops what it has made.
func TestInstallIsAllOrNothing(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), orders, "CREATE TABLE other (id INT)",
			"CREATE TRIGGER "+schema.CaptureName("orders", "delete")+" BEFORE INSERT ON other FOR EACH ROW SET @a = 1")
		_, err := Install(t.Context(), db, "orders", Options{})
		require.ErrorAs(t, err, new(*TriggerExistsError))
		require.ErrorContains(t, err, "`mqnotify_capture_delete_orders`")
		states, err := Status(t.Context(), db, "orders")
		require.NoError(t, err)
		assert.Empty(t, states)
	})
}

// Names of any form give correct SQL, and no part of a name is executed as SQL.
func TestOddNames(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE victim (id INT)")
		for _, name := range mysqltest.Some(t, []string{
			"a`b", `it's "it"`, `back\slash`, "line\nbreak", "?", "t`; DROP TABLE victim; -- x", "{topic}", "{old}", "new_row",
			"a//b", "'NEW.`x`'", "größe 注文", strings.Repeat("é", 55),
		}) {
			mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE "+ident.Quote(name)+" (id INT AUTO_INCREMENT PRIMARY KEY, "+ident.Quote(name)+" TEXT) CHARACTER SET utf8mb4")
			plan, err := Install(t.Context(), db, name, Options{})
			require.NoError(t, err, name)
			mysqltest.ExecAll(t, db.Pool(), "INSERT INTO "+ident.Quote(name)+" VALUES (1, 'v')", "UPDATE "+ident.Quote(name)+" SET id = 2", "DELETE FROM "+ident.Quote(name))
			key := string(table.AppendString(nil, []byte(name)))
			row := func(id int) string { return fmt.Sprintf(`{"id":%d,%s:"v"}`, id, key) }
			assert.Equal(t, []string{"insert null " + row(1), "delete " + row(1) + " null", "insert null " + row(2), "delete " + row(2) + " null"},
				changes(t, db, plan.Topic), name)
			states, err := Status(t.Context(), db, name)
			require.NoError(t, err)
			require.Len(t, states, 3)
			for _, state := range states {
				assert.Equal(t, State{Table: name, Trigger: state.Trigger, Op: state.Op, Topic: plan.Topic, Definer: state.Definer, Columns: plan.Columns,
					MadeFor: name, made: state.made}, state)
			}
			_, err = Remove(t.Context(), db, name, Options{})
			require.NoError(t, err)
		}
		mysqltest.ExecAll(t, db.Pool(), "SELECT * FROM victim")
	})
}

// Status shows changes of the table that affect a capture. A change that breaks the trigger makes writes fail; no message is lost.
func TestStatusShowsChanges(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), orders)
		_, err := Install(t.Context(), db, "orders", Options{Ops: []string{"insert"}})
		require.NoError(t, err)
		state := func() State {
			states, err := Status(t.Context(), db, "orders")
			require.NoError(t, err)
			require.Len(t, states, 1)
			return states[0]
		}
		mysqltest.ExecAll(t, db.Pool(), "ALTER TABLE orders ADD note TEXT", "INSERT INTO orders (id) VALUES (1)")
		assert.Equal(t, []string{"note"}, state().Missed)
		assert.False(t, state().Broken)

		mysqltest.ExecAll(t, db.Pool(), "RENAME TABLE orders_changes TO elsewhere")
		assert.True(t, state().NoTopic)
		_, err = db.Pool().ExecContext(t.Context(), "INSERT INTO orders (id) VALUES (2)")
		require.Equal(t, uint16(server.ErrNoSuchTable), server.Number(err), "%v", err)
		mysqltest.ExecAll(t, db.Pool(), "RENAME TABLE elsewhere TO orders_changes")
		mysqltest.ExecAll(t, db.Pool(), "ALTER TABLE orders_changes MODIFY payload TINYBLOB NOT NULL")
		assert.True(t, state().NoTopic)
		mysqltest.ExecAll(t, db.Pool(), "ALTER TABLE orders_changes MODIFY payload LONGBLOB NOT NULL")
		assert.False(t, state().Broken)
		_, err = standing{Table: "orders", made: &definition{Table: "orders", Topic: strings.Repeat("x", 65)}}.state(t.Context(), db)
		require.ErrorIs(t, err, notify.ErrOptions, "an error that does not mean that there is no topic")

		_, err = db.Pool().ExecContext(t.Context(), "ALTER TABLE orders DROP paid")
		if err != nil { // MySQL 8 and later refuse, or not: whatever they do, nothing is lost unseen
			t.Log(err)
			return
		}
		assert.Equal(t, []string{"paid"}, state().Gone)
		assert.True(t, state().Broken)
		_, err = db.Pool().ExecContext(t.Context(), "INSERT INTO orders (id) VALUES (2)")
		require.Error(t, err)
		assert.Len(t, changes(t, db, "orders_changes"), 1)
	})
}

// The server refuses a change of a row whose JSON is too large for a packet, whatever the op.
func TestRowTooLarge(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t, "--max-allowed-packet=1M")
		db := open(t, own.Database(t))
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE files (id INT PRIMARY KEY, content LONGBLOB)", "INSERT INTO files VALUES (1, REPEAT('x', 900000))")
		_, err := Install(t.Context(), db, "files", Options{})
		require.NoError(t, err)
		for _, statement := range []string{
			"INSERT INTO files VALUES (2, REPEAT('x', 900000))",
			"UPDATE files SET content = REPEAT('y', 900000)",
			"DELETE FROM files",
		} {
			_, err := db.Pool().ExecContext(t.Context(), statement)
			require.NotZero(t, server.Number(err), "%s: %v", statement, err)
		}
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO files VALUES (2, REPEAT('x', 90000))")
		assert.Len(t, changes(t, db, "files_changes"), 1)
		var rows int
		require.NoError(t, db.Pool().GetContext(t.Context(), &rows, "SELECT COUNT(*) FROM files"))
		assert.Equal(t, 2, rows)
	})
}

// The hour that comes twice in the writer's time zone in autumn is unambiguous in messages.
func TestTimestampInARepeatedHour(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if s.Name() == "dsn" {
			t.Skip("the server may be in another time zone than " + zone)
		}
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE events (id INT PRIMARY KEY, at TIMESTAMP(3) NULL)")
		session, err := db.Pool().Connx(t.Context())
		require.NoError(t, err)
		defer session.Close()
		for _, statement := range []string{
			"SET time_zone = '+00:00'", "INSERT INTO events VALUES (1, '2024-10-27 00:30:00.5'), (2, '2024-10-27 01:30:00.5')", "SET time_zone = 'SYSTEM'",
		} {
			_, err := session.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		var local []string
		require.NoError(t, session.SelectContext(t.Context(), &local, "SELECT DISTINCT CAST(at AS CHAR) FROM events"))
		require.Equal(t, []string{"2024-10-27 02:30:00.500"}, local, "the zone has no such hour: no test")
		_, err = Install(t.Context(), db, "events", Options{})
		require.NoError(t, err)
		_, err = session.ExecContext(t.Context(), "DELETE FROM events")
		require.NoError(t, err)
		assert.Equal(t, []string{
			`delete {"id":1,"at":"2024-10-27T00:30:00.500Z"} null`,
			`delete {"id":2,"at":"2024-10-27T01:30:00.500Z"} null`,
		}, changes(t, db, "events_changes"))
	})
}

// The changes that fire no trigger, as documented.
func TestChangesWithoutATrigger(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), orders, "CREATE TABLE items (id INT PRIMARY KEY, order_id INT, FOREIGN KEY (order_id) REFERENCES orders (id) ON DELETE CASCADE)",
			"INSERT INTO orders (id) VALUES (1)", "INSERT INTO items VALUES (1, 1)")
		_, err := Install(t.Context(), db, "items", Options{})
		require.NoError(t, err)
		mysqltest.ExecAll(t, db.Pool(), "DELETE FROM orders", "TRUNCATE items")
		assert.Empty(t, changes(t, db, "items_changes"))

		// MariaDB tells triggers of a change that UPDATE IGNORE gave up.
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO items VALUES (1, NULL), (2, NULL)", "UPDATE IGNORE items SET id = 2 WHERE id = 1")
		assert.Len(t, changes(t, db, "items_changes"), map[bool]int{true: 4, false: 2}[s.IsMariaDB()])
	})
}

// While a transaction uses the table, Install waits for Patience, and then makes nothing.
func TestBusyTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), orders)
		tx, err := db.Pool().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO orders (id) VALUES (1)")
		require.NoError(t, err)
		_, err = Install(t.Context(), db, "orders", Options{Patience: time.Millisecond, Logger: quiet})
		require.ErrorIs(t, err, ErrBusy)
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := errors.New("ended by the test")
		done := make(chan error, 1)
		go func() {
			_, err := Install(ctx, db, "orders", Options{Logger: quiet})
			done <- err
		}()
		waitsForTable(t, db, "CREATE TRIGGER")
		cancel(ended)
		require.ErrorIs(t, <-done, ended)
		done = make(chan error, 1)
		go func() {
			_, err := Install(t.Context(), db, "orders", Options{Logger: quiet})
			done <- err
		}()
		waitsForTable(t, db, "CREATE TRIGGER")
		require.NoError(t, tx.Commit())
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(patience):
			t.Fatal("it does not go on")
		}
		mysqltest.ExecAll(t, db.Pool(), "DELETE FROM orders")
		assert.Equal(t, []string{`delete {"id":1,"name":null,"paid":0} null`}, changes(t, db, "orders_changes"))
	})
}

// waitsForTable returns when a statement of that kind waits for the table's metadata lock.
func waitsForTable(tb testing.TB, db *notify.DB, statement string) {
	tb.Helper()
	mysqltest.Eventually(tb, "a statement waits for the table", func() bool {
		return mysqltest.Value[int](tb, db.Pool(), `SELECT COUNT(*) FROM information_schema.PROCESSLIST
			WHERE DB = ? AND ID <> CONNECTION_ID() AND INFO LIKE ? AND STATE LIKE '%metadata lock%'`, db.Name(), "%"+statement+"%") > 0
	})
}

func TestRefusals(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "topic"))
		mysqltest.ExecAll(t, db.Pool(), orders, "CREATE VIEW v AS SELECT * FROM orders", "CREATE TABLE small LIKE topic", "ALTER TABLE small MODIFY payload BLOB NOT NULL",
			"CREATE TABLE western LIKE topic", "ALTER TABLE western MODIFY payload LONGTEXT CHARACTER SET latin1 NOT NULL",
			"CREATE TABLE bmp LIKE topic", "ALTER TABLE bmp MODIFY payload LONGTEXT CHARACTER SET utf8mb3 NOT NULL",
			"CREATE TABLE wide LIKE topic", "ALTER TABLE wide MODIFY payload LONGTEXT CHARACTER SET utf8mb4 NOT NULL")
		if s.IsMariaDB() {
			mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE headers LIKE topic", "ALTER TABLE headers MODIFY headers LONGTEXT CHARACTER SET latin1 CHECK (JSON_VALID(headers))")
			_, err := Install(t.Context(), db, "orders", Options{Into: "headers"})
			require.ErrorContains(t, err, "MODIFY headers JSON")
		}
		for _, test := range []struct {
			table string
			o     Options
			want  error
			text  string
		}{
			{"order", Options{}, notify.ErrNoTable, "did you mean `orders`"},
			{"v", Options{}, notify.ErrNotTopic, "is a view"},
			{"orders", Options{Ops: []string{"truncate"}}, notify.ErrOptions, "insert, update or delete"},
			{"orders", Options{Columns: []string{"nam"}}, table.ErrNoColumn, "did you mean `name`"},
			{"orders", Options{Columns: []string{"id", "ID"}}, notify.ErrOptions, "twice"},
			{"orders", Options{Patience: -1}, notify.ErrOptions, "negative"},
			{"orders", Options{Into: "v"}, notify.ErrNotTopic, "--into"},
			{"orders", Options{Into: "small"}, notify.ErrNotTopic, "MODIFY payload LONGBLOB NOT NULL"},
			{"orders", Options{Into: "western"}, notify.ErrNotTopic, "MODIFY payload LONGTEXT CHARACTER SET utf8mb4 NOT NULL"},
			{"orders", Options{Into: "bmp"}, notify.ErrNotTopic, "MODIFY payload LONGBLOB NOT NULL"},
			{"topic", Options{Into: "topic"}, notify.ErrOptions, "its own changes"},
		} {
			_, err := Install(t.Context(), db, test.table, test.o)
			require.ErrorIs(t, err, test.want, "%+v", test)
			require.ErrorContains(t, err, test.text)
		}
		_, err := Prepare(t.Context(), db, "orders", Options{Into: "wide"})
		require.NoError(t, err)
		var invalid *ident.InvalidError
		_, err = Install(t.Context(), db, strings.Repeat("x", 65), Options{})
		require.ErrorAs(t, err, &invalid)
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE "+strings.Repeat("x", 60)+" (id INT)")
		_, err = Install(t.Context(), db, strings.Repeat("x", 60), Options{})
		require.ErrorAs(t, err, &invalid)
		require.ErrorContains(t, err, "--into")
		states, err := Status(t.Context(), db, "")
		require.NoError(t, err)
		assert.Empty(t, states)
	})
}
