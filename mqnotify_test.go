package mqnotify_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
)

func open(tb testing.TB, config *mysql.Config) *mqnotify.DB {
	tb.Helper()
	db, err := mqnotify.Open(config.FormatDSN())
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// consumed returns the values that a handler gets from a topic, up to n.
func consumed[T any](t *testing.T, db *mqnotify.DB, topic, group string, n int) (all []mqnotify.Message[T]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, mqnotify.Consume(ctx, db, topic, group, func(_ context.Context, m mqnotify.Message[T]) error {
		if all = append(all, m); len(all) == n {
			return mqnotify.ErrStop
		}
		return nil
	}, beginning))
	require.Len(t, all, n)
	return all
}

// Consumers get values as they were published, whatever their type is.
func TestValues(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		require.NoError(t, db.Init(t.Context(), "texts", "bytes", "json", "structs", "maps", "any"))
		ctx := t.Context()
		require.NoError(t, mqnotify.Publish(ctx, db, "texts", "é😀", "", "{"))
		require.NoError(t, mqnotify.Publish(ctx, db, "bytes", []byte{0, 255}))
		require.NoError(t, mqnotify.Publish(ctx, db, "json", json.RawMessage(`{"a": 1}`)))
		require.NoError(t, mqnotify.Publish(ctx, db, "structs", Order{"Ada", 3}, Order{}))
		require.NoError(t, mqnotify.Publish(ctx, db, "maps", map[string]int{"a": 1}))
		require.NoError(t, mqnotify.Publish[Order](ctx, db, "structs"), "none is fine")
		require.ErrorIs(t, mqnotify.Publish(ctx, db, "structs", func() {}), notify.ErrOptions)

		texts := consumed[string](t, db, "texts", "g", 3)
		require.Equal(t, "é😀", texts[0].Value)
		require.Equal(t, "{", texts[2].Value)
		require.NotZero(t, texts[0].ID)
		require.NotZero(t, texts[0].CreatedAt)
		require.Equal(t, []byte{0, 255}, consumed[[]byte](t, db, "bytes", "g", 1)[0].Value)
		require.JSONEq(t, `{"a":1}`, string(consumed[json.RawMessage](t, db, "json", "g", 1)[0].Value))
		require.Equal(t, Order{"Ada", 3}, consumed[Order](t, db, "structs", "g", 2)[0].Value)
		require.Equal(t, &Order{"Ada", 3}, consumed[*Order](t, db, "structs", "h", 2)[0].Value)
		require.Equal(t, map[string]int{"a": 1}, consumed[map[string]int](t, db, "maps", "g", 1)[0].Value)
		require.NoError(t, mqnotify.Publish[any](ctx, db, "any", "text", 1.5, nil))
		require.Equal(t, []any{"text", 1.5, nil}, values(consumed[any](t, db, "any", "g", 3)))
	})
}

type wide struct {
	ID      uint64           `db:"id"`
	Text    string           `db:"t"`
	Latin   string           `db:"l"` // holds bytes that are not UTF-8
	Blob    []byte           `db:"b"`
	Raw     string           `db:"bin"`
	Number  int8             `db:"n"`
	Big     uint64           `db:"big"`
	Flag    bool             `db:"flag"`
	Decimal float64          `db:"d"`
	Float   float32          `db:"f"`
	At      time.Time        `db:"at"`
	Day     time.Time        `db:"day"`
	JSON    map[string]int   `db:"j"`
	RawJSON json.RawMessage  `db:"j2"`
	Null    *string          `db:"null1"`
	Null2   sql.Null[int64]  `db:"null2"`
	Some    sql.Null[string] `db:"some"`
	Time    sql.NullTime     `db:"at2"`
	Odd     sql.NullInt64    `db:"null3"`
	Truth   bool             `db:"j3"`
	Ignored int
}

// The rows of any table are read into a struct by its db tags.
func TestRows(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		require.NoError(t, db.Init(t.Context()))
		pool := db.Core().Pool()
		mysqltest.ExecAll(t, pool, "SET time_zone = '+00:00'", `CREATE TABLE wide (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, t TEXT CHARACTER SET utf8mb4, l VARCHAR(9) CHARACTER SET latin1, b BLOB,
			bin VARBINARY(9), n TINYINT, big BIGINT UNSIGNED, flag TINYINT(1), d DECIMAL(10,3), f FLOAT, at DATETIME(6), day DATE, j JSON, j2 JSON, j3 JSON,
			null1 TEXT, null2 BIGINT, some TEXT, at2 DATETIME, null3 INT, more INT)`,
			`INSERT INTO wide (t, l, b, bin, n, big, flag, d, f, at, day, j, j2, j3, some, at2) VALUES ('é😀', 'é', X'00FF', 'ab', -5, 18446744073709551615, 1, 12.345, 1.1,
			'2026-01-02 03:04:05.678901', '2026-01-02', '{"a": 1}', '[1, 2]', 'true', 'x', '2026-01-02 03:04:05')`)
		got := consumed[wide](t, db, "wide", "g", 1)[0].Value
		require.JSONEq(t, "[1,2]", string(got.RawJSON))
		got.RawJSON = nil
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		require.Equal(t, wide{
			ID: 1, Text: "é😀", Latin: "é", Blob: []byte{0, 255}, Raw: "ab", Number: -5, Big: 18446744073709551615, Flag: true, Decimal: 12.345, Float: 1.1,
			At: at.Add(678901 * time.Microsecond), Day: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), JSON: map[string]int{"a": 1},
			Some: sql.Null[string]{V: "x", Valid: true}, Time: sql.NullTime{Time: at, Valid: true}, Truth: true,
		}, got)

		require.Equal(t, "ab", consumed[*wide](t, db, "wide", "h", 1)[0].Value.Raw)

		// Without db tags the row is a JSON object.
		mysqltest.ExecAll(t, pool, "CREATE TABLE plain (id INT AUTO_INCREMENT PRIMARY KEY, customer TEXT, total INT)", "INSERT INTO plain (customer, total) VALUES ('Ada', 3)")
		require.Equal(t, Order{"Ada", 3}, consumed[Order](t, db, "plain", "g", 1)[0].Value)
		require.Equal(t, `{"id":1,"customer":"Ada","total":3}`, consumed[string](t, db, "plain", "h", 1)[0].Value)
	})
}

// scanned is a sql.Scanner that expects a time.Time, as types do that embed sql.NullTime.
type scanned struct{ sql.NullTime }

// Dates without a value, which old tables have, are the zero time. A sql.Scanner may expect a time.
func TestTimesOfRows(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		require.NoError(t, db.Init(t.Context()))
		config := db.Core().Pool()
		conn, err := config.Connx(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		for _, statement := range []string{
			"SET sql_mode = '', time_zone = '+00:00'",
			"CREATE TABLE old (id INT AUTO_INCREMENT PRIMARY KEY, at DATETIME, day DATE, own DATETIME)",
			"INSERT INTO old (at, day, own) VALUES ('0000-00-00', '0000-00-00', '2026-01-02 03:04:05'), (NULL, NULL, NULL)",
		} {
			_, err := conn.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		type old struct {
			At  *time.Time   `db:"at"`
			Day sql.NullTime `db:"day"`
			Own scanned      `db:"own"`
		}
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		require.Equal(t, []old{{&time.Time{}, sql.NullTime{Valid: true}, scanned{sql.NullTime{Time: at, Valid: true}}}, {}}, values(consumed[old](t, db, "old", "g", 2)))
	})
}

// The JSON value null and NULL differ in the JSON of a row and in the fields of structs.
func TestJSONNull(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		require.NoError(t, db.Init(t.Context()))
		mysqltest.ExecAll(t, db.Core().Pool(), "CREATE TABLE docs (id INT AUTO_INCREMENT PRIMARY KEY, a JSON, b JSON, c JSON, d JSON, e JSON)",
			"INSERT INTO docs () VALUES ()", `INSERT INTO docs SET a = 'null', b = 'null', c = 'null', d = 'null', e = 'null'`)
		require.Equal(t, []string{
			`{"id":1,"a":null,"b":null,"c":null,"d":null,"e":null}`,
			`{"id":2,"a_json":"null","b_json":"null","c_json":"null","d_json":"null","e_json":"null"}`,
		}, values(consumed[string](t, db, "docs", "text", 2)))
		type docs struct {
			A json.RawMessage           `db:"a"`
			B *json.RawMessage          `db:"b"`
			C sql.Null[json.RawMessage] `db:"c"`
			D sql.NullString            `db:"d"`
			E map[string]int            `db:"e"`
		}
		null := json.RawMessage("null")
		require.Equal(t, []docs{
			{},
			{A: null, B: &null, C: sql.Null[json.RawMessage]{V: null, Valid: true}, D: sql.NullString{String: "null", Valid: true}},
		}, values(consumed[docs](t, db, "docs", "structs", 2)))
	})
}

// values returns the values of messages.
func values[T any](messages []mqnotify.Message[T]) (all []T) {
	for _, m := range messages {
		all = append(all, m.Value)
	}
	return all
}

// A value that can't be decoded, and a message that a handler gives up, become dead letters at once. Nothing is skipped silently.
func TestDeadLetters(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		require.NoError(t, db.Init(t.Context(), "orders"))
		require.NoError(t, db.InitQueues(t.Context(), "mail"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, mqnotify.Publish(ctx, db, "orders", "no JSON", `{"Customer": "never"}`, `{"Customer": "Ada"}`))
		calls := 0
		require.NoError(t, mqnotify.Consume(ctx, db, "orders", "g", func(_ context.Context, m mqnotify.Message[Order]) error {
			calls++
			if m.Value.Customer == "never" {
				return fmt.Errorf("a wrong customer: %w", mqnotify.ErrDead)
			}
			require.Equal(t, "Ada", m.Value.Customer)
			return mqnotify.ErrStop
		}, beginning))
		require.Equal(t, 2, calls)
		dead := mysqltest.Values[string](t, db.Core().Pool(), "SELECT CONCAT(attempts, ' ', error) FROM mqnotify_dead_letter ORDER BY message_id")
		require.Len(t, dead, 2)
		require.Contains(t, dead[0], "1 ")
		require.Contains(t, dead[0], "the payload is not the JSON of a mqnotify_test.Order")
		require.Contains(t, dead[1], "a wrong customer")

		// The field can't hold NULL.
		mysqltest.ExecAll(t, db.Core().Pool(), "CREATE TABLE rows_ (id INT AUTO_INCREMENT PRIMARY KEY, a INT)", "INSERT INTO rows_ (a) VALUES (NULL)")
		require.NoError(t, stopAtEnd[struct {
			A int `db:"a"`
		}](ctx, db, "rows_", "null"))
		require.Contains(t, mysqltest.Value[string](t, db.Core().Pool(), "SELECT error FROM mqnotify_dead_letter WHERE group_name = 'null'"), "it is NULL")

		// Consume refuses a struct with a column that the table lacks, because all rows would become dead letters.
		err := stopAtEnd[struct {
			B int `db:"b"`
		}](ctx, db, "rows_", "none")
		require.ErrorIs(t, err, notify.ErrOptions)
		require.ErrorContains(t, err, `db tag "b"`)
		mysqltest.Exec(t, db.Core().Pool(), "ALTER TABLE rows_ ADD b INT INVISIBLE")
		err = stopAtEnd[struct {
			B int `db:"b"`
		}](ctx, db, "rows_", "none")
		require.ErrorContains(t, err, `db tag "b"`)
		mysqltest.Exec(t, db.Core().Pool(), "ALTER TABLE rows_ ADD Cased INT")
		err = mqnotify.Consume(ctx, db, "rows_", "none", func(context.Context, mqnotify.Message[struct {
			Cased int `db:"cased"`
		}]) error {
			return nil
		}, mqnotify.ConsumeOptions{From: "beginning", StopAtEnd: true, Columns: []string{"cased"}}) // the rows have Cased
		require.ErrorContains(t, err, `db tag "cased"`)
		err = stopAtEnd[struct{ *inner }](ctx, db, "rows_", "none")
		require.ErrorIs(t, err, notify.ErrOptions)
		require.ErrorContains(t, err, "embed the struct itself")
		err = stopAtEnd[struct {
			inner `db:"inner"`
		}](ctx, db, "rows_", "none")
		require.ErrorContains(t, err, "remove the tag")

		// A JSON payload and a JSON column need no db tags, and so may have such structs.
		require.NoError(t, stopAtEnd[struct {
			inner `db:"inner"`
		}](ctx, db, "orders", "payload"))
		mysqltest.ExecAll(t, db.Core().Pool(), "CREATE TABLE nested (id INT AUTO_INCREMENT PRIMARY KEY, j JSON)", `INSERT INTO nested (j) VALUES ('{}')`)
		require.NoError(t, stopAtEnd[struct {
			J struct {
				inner `db:"inner"`
			} `db:"j"`
		}](ctx, db, "nested", "column"))
		require.Zero(t, mysqltest.Value[int](t, db.Core().Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter WHERE group_name = 'column'"))

		// Tasks.
		require.NoError(t, mqnotify.Enqueue(ctx, db, "mail", "no JSON", `{"Customer": "Ada"}`))
		work, stop := context.WithCancel(ctx)
		require.NoError(t, mqnotify.Work(work, db, "mail", func(_ context.Context, task mqnotify.Task[Order]) error {
			require.Equal(t, "Ada", task.Value.Customer)
			stop()
			return nil
		}))
		q, err := queue.New(db.Core(), "mail", queue.Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, q.Close()) }()
		counts, err := q.Counts(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, counts["dead"])
		require.Equal(t, 1, counts["done"])
	})
}

type inner struct {
	A *int `db:"a"`
}

func stopAtEnd[T any](ctx context.Context, db *mqnotify.DB, topic, group string) error {
	return mqnotify.Consume(ctx, db, topic, group, func(context.Context, mqnotify.Message[T]) error { return nil },
		mqnotify.ConsumeOptions{From: "beginning", StopAtEnd: true})
}

// A transaction per row needs one connection of the pool. After a column is altered, a running consumer reads its new
// form.
func TestAlteredRows(t *testing.T) {
	type row struct {
		C    string         `db:"c"`
		List []byte         `db:"list"`
		JSON map[string]int `db:"j"`
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db, other := open(t, config), open(t, config)
		require.NoError(t, db.Init(t.Context()))
		pool := other.Core().Pool()
		mysqltest.ExecAll(t, pool, "CREATE TABLE altered (id INT AUTO_INCREMENT PRIMARY KEY, c VARBINARY(9), list BLOB, j JSON)",
			"INSERT INTO altered (c) VALUES ('abcd')")
		db.Core().Pool().SetMaxOpenConns(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var got []string
		require.NoError(t, mqnotify.ConsumeTx(ctx, db, "altered", "g", func(_ context.Context, _ *sqlx.Tx, m mqnotify.Message[row]) error {
			require.Nil(t, m.Value.List, "NULL is nil")
			require.Nil(t, m.Value.JSON)
			if got = append(got, m.Value.C); len(got) == 2 {
				return mqnotify.ErrStop
			}
			go func() {
				_, _ = pool.ExecContext(ctx, "ALTER TABLE altered MODIFY c VARCHAR(9)")
				_, _ = pool.ExecContext(ctx, "INSERT INTO altered (c) VALUES ('abcd')")
			}()
			return nil
		}, beginning))
		require.Equal(t, []string{"abcd", "abcd"}, got)
	})
}

// Two callers that lock the same name run one after the other, and a caller that loses the lock learns it.
func TestLock(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		one, two := open(t, config), open(t, config)
		err := one.Lock(t.Context(), "x", func(context.Context) error {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			err := two.Lock(ctx, "x", func(context.Context) error { panic("both have it") })
			require.ErrorIs(t, err, context.DeadlineExceeded)
			if !errors.Is(err, notify.ErrNotAcquired) { // on a loaded machine it may not even have connected
				t.Log(err)
			}
			return sql.ErrNoRows
		})
		require.ErrorIs(t, err, sql.ErrNoRows)
		err = two.Lock(t.Context(), "x", func(ctx context.Context) error {
			mysqltest.Eventually(t, "the context ends with the lock", func() bool { // a server may answer before it shows that a session sleeps
				for _, id := range mysqltest.Sessions(t, one.Core().Pool(), config.DBName, "COMMAND = 'Sleep'") {
					mysqltest.KillSession(t, one.Core().Pool(), id)
				}
				return ctx.Err() != nil
			})
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, notify.ErrLockLost)
	})
}

func TestRefusals(t *testing.T) {
	_, err := mqnotify.Open("user:secret@tcp(127.0.0.1)/")
	require.ErrorIs(t, err, notify.ErrOptions)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.Exec(t, db.Core().Pool(), "CREATE TABLE other (id INT PRIMARY KEY)")
		require.ErrorIs(t, db.Init(t.Context(), "other"), notify.ErrNotTopic)
		handle := func(context.Context, mqnotify.Message[string]) error { return nil }
		require.ErrorIs(t, mqnotify.Consume(t.Context(), db, "x", "g", handle, mqnotify.ConsumeOptions{}, mqnotify.ConsumeOptions{}), notify.ErrOptions)
		require.ErrorIs(t, mqnotify.Consume(t.Context(), db, "x", "g", handle, mqnotify.ConsumeOptions{Group: "h"}), notify.ErrOptions)
		require.ErrorIs(t, mqnotify.Consume(t.Context(), db, "nothing", "g", handle), notify.ErrNoTable)
		require.NoError(t, db.Init(t.Context(), "x"))
		require.ErrorIs(t, mqnotify.Consume[string](t.Context(), db, "x", "g", nil), notify.ErrOptions)
		require.ErrorIs(t, mqnotify.ConsumeTx[string](t.Context(), db, "x", "g", nil), notify.ErrOptions)
		require.ErrorIs(t, mqnotify.Work[string](t.Context(), db, "x", nil), notify.ErrOptions)
		require.NoError(t, db.Close())
		require.NoError(t, db.Close(), "twice")
	})
}
