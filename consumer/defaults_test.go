package consumer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/producer"
)

// The invariant: messages and rows arrive whole, whatever a server's defaults for new sessions are.
func TestServerDefaults(t *testing.T) {
	mysqltest.NotShort(t, "TestVariablesOfTheDSN")
	const text = "é😀注"
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t) // its globals change
		admin := s.Admin(t)
		cases := []string{
			"init_connect = 'SET NAMES utf8mb3'", "init_connect = 'SET NAMES latin1'", "init_connect = 'SET NAMES gbk'",
			"sql_select_limit = 1", "character_set_server = latin1", "init_connect = 'SET autocommit = 0'",
			"sql_mode = ''", "max_join_size = 1",
		}
		if s.IsMariaDB() {
			cases = append(cases, "sql_mode = 'EMPTY_STRING_IS_NULL,STRICT_TRANS_TABLES'", "max_statement_time = 0.2", "sql_quote_show_create = 0")
		} else {
			cases = append(cases, "max_execution_time = 100")
		}
		for n, set := range cases {
			t.Run(set, func(t *testing.T) {
				config := s.Database(t)
				name, _, _ := strings.Cut(set, " ")
				mysqltest.Exec(t, admin, "SET GLOBAL "+set)
				defer mysqltest.Exec(t, admin, "SET GLOBAL "+name+" = DEFAULT")
				account := s.User(t, config, "ALL ON `"+config.DBName+"`.*") // init_connect is not for those with SUPER
				db := openConfig(t, account)
				require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
				mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE things (id INT AUTO_INCREMENT PRIMARY KEY, a TEXT CHARACTER SET utf8mb4, b TEXT, c INT, d INT)")
				_, err := db.Pool().ExecContext(t.Context(), "INSERT INTO things (a, b, c, d) VALUES (?, '', 3, 4), (?, '', 5, 6)", text, text)
				require.NoError(t, err)
				p, err := producer.New(db, "orders", producer.Options{})
				require.NoError(t, err)
				defer func() { require.NoError(t, p.Close()) }()
				_, err = p.Publish(t.Context(), producer.Message{Headers: map[string]string{text: text}, Payload: []byte(text)}, producer.Message{})
				require.NoError(t, err)
				mysqltest.Exec(t, db.Pool(), "CREATE TABLE small LIKE orders")
				mysqltest.Exec(t, db.Pool(), "ALTER TABLE small MODIFY payload VARBINARY(5) NOT NULL")
				small, err := producer.New(db, "small", producer.Options{})
				require.NoError(t, err)
				defer func() { require.NoError(t, small.Close()) }()
				_, err = small.Publish(t.Context(), producer.Message{Payload: []byte("too long")})
				require.EqualValues(t, 1406, number(err), "cut short: %v", err)

				var messages, rows []Message
				read := func(topic string, into *[]Message) {
					c, err := New(db, topic, Options{Group: fmt.Sprint("g", n), From: "beginning"})
					require.NoError(t, err)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					require.NoError(t, c.Run(ctx, Each(func(_ context.Context, m Message) error {
						if *into = append(*into, m); len(*into) == 2 {
							return ErrStop
						}
						return nil
					})))
				}
				read("orders", &messages)
				read("things", &rows)
				require.Equal(t, text, string(messages[0].Payload))
				require.Equal(t, map[string]string{text: text}, messages[0].Headers)
				require.Empty(t, messages[1].Payload)
				require.WithinDuration(t, time.Now(), messages[0].CreatedAt, time.Minute)
				require.Equal(t, `{"id":1,"a":"`+text+`","b":"","c":3,"d":4}`, string(rows[0].Payload))

				// It is stored as text, not as bytes that happen to read back correctly.
				other := openConfig(t, config)
				require.Equal(t, text, mysqltest.Value[string](t, other.Pool(), "SELECT a FROM things LIMIT 1"))
				require.Contains(t, mysqltest.Value[string](t, other.Pool(), "SELECT headers FROM orders LIMIT 1"), text)
				require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT SLEEP(0.3)"), "no statement is cut short")
			})
		}
	})
}

// A session variable that the user's DSN sets has its value in every connection.
func TestVariablesOfTheDSN(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		config.Params = map[string]string{"SQL_MODE": "'ANSI_QUOTES'", "sql_select_limit": "1", "max_execution_time": "12345"}
		if s.IsMariaDB() {
			delete(config.Params, "max_execution_time")
			config.Params["max_statement_time"] = "123"
		}
		for range 10 { // the driver sets them in any order
			db := openConfig(t, config)
			require.Equal(t, "ANSI_QUOTES", mysqltest.Value[string](t, db.Pool(), "SELECT @@sql_mode"))
			require.Len(t, mysqltest.Values[int](t, db.Pool(), "SELECT 1 UNION ALL SELECT 2"), 2, "messages depend on it")
			if s.IsMariaDB() {
				require.Equal(t, 123, mysqltest.Value[int](t, db.Pool(), "SELECT CAST(@@max_statement_time AS SIGNED)"))
			} else {
				require.Equal(t, 12345, mysqltest.Value[int](t, db.Pool(), "SELECT @@max_execution_time"))
			}
		}
	})
}
