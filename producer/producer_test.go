package producer

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

func everyByte() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

// Messages are stored byte by byte as they were published, under every mode that changes how a
// string is written.
func TestPublishStoresEveryByte(t *testing.T) {
	messages := []Message{
		{Payload: []byte("plain")},
		{Payload: everyByte()},
		{Payload: nil},
		{Payload: []byte{}, Headers: map[string]string{}},
		{Payload: []byte(`\'"?%_` + "\x00\n\r\x1a"), Headers: map[string]string{
			`quote ' " \ ? ` + "`": "<&>\x00\n", "": "", "ünï": "日本 🐬",
		}},
		{Payload: []byte("?, ?); DROP TABLE x; --"), Headers: map[string]string{"a": "?", "b": "b"}},
	}
	want := func(m Message) Message {
		if len(m.Headers) == 0 {
			m.Headers = nil
		}
		if m.Payload == nil {
			m.Payload = []byte{}
		}
		return m
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, mode := range []string{"", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES", "ANSI,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES"} {
			t.Run("mode "+mode, func(t *testing.T) {
				config := s.Database(t)
				config.Params = map[string]string{"sql_mode": "'" + mode + "'"}
				db := open(t, config)
				require.NoError(t, schema.Init(t.Context(), db.Pool(), "x"))
				p := newProducer(t, db, "x", Options{})

				ids, err := p.Publish(t.Context(), messages...)
				require.NoError(t, err)
				for _, m := range messages { // and each by itself
					id, err := p.Publish(t.Context(), m)
					require.NoError(t, err)
					ids = append(ids, id...)
				}
				got := stored(t, db, "x")
				require.Len(t, got, len(ids))
				for i, id := range ids {
					assert.Equal(t, want(messages[i%len(messages)]), got[id], "message %d", i)
				}
				var nulls int
				require.NoError(t, db.Pool().GetContext(t.Context(), &nulls, "SELECT COUNT(*) FROM x WHERE headers IS NULL"))
				assert.Equal(t, 2*4, nulls)
			})
		}
	})
}

func TestTopicNames(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		for _, topic := range []string{
			"select", "back`tick", "a b", " in front", "'quoted'", `"double"`, "ünïcödé 日本", "semi;colon -- #",
			"`; DROP TABLE x; --", "what?", "a/*b*/", strings.Repeat("é", 64),
		} {
			require.NoError(t, schema.Init(t.Context(), db.Pool(), topic))
			p := newProducer(t, db, topic, Options{})
			ids, err := p.Publish(t.Context(), Message{Payload: []byte("1")}, Message{Payload: []byte("2")})
			require.NoError(t, err, topic)
			assert.Equal(t, map[uint64]Message{ids[0]: {Payload: []byte("1")}, ids[1]: {Payload: []byte("2")}},
				stored(t, db, topic), topic)
		}
	})
}

// The ids that Publish computes are those of the rows, with many publishers at the
// same time, in every lock mode of AUTO_INCREMENT and with an increment above 1.
func TestIDs(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		check := func(t *testing.T, s *mysqltest.Server, step int) {
			config := s.Database(t)
			config.Params = map[string]string{
				"auto_increment_increment": fmt.Sprint(step), "auto_increment_offset": fmt.Sprint(min(step, 2)),
			}
			db := open(t, config)
			require.NoError(t, schema.Init(t.Context(), db.Pool(), "x"))
			p := newProducer(t, db, "x", Options{BatchRows: 40})
			var mu sync.Mutex
			want := map[uint64]string{}
			var wg sync.WaitGroup
			for publisher := range 6 {
				wg.Go(func() {
					for round := range mysqltest.Many(10, 30, 30) {
						messages := make([]Message, 1+(publisher*37+round*11)%60) // one, one statement, two
						for i := range messages {
							messages[i].Payload = fmt.Appendf(nil, "%d %d %d", publisher, round, i)
						}
						ids, err := p.Publish(t.Context(), messages...)
						if !assert.NoError(t, err) || !assert.Len(t, ids, len(messages)) {
							return
						}
						mu.Lock()
						for i, id := range ids {
							want[id] = string(messages[i].Payload)
						}
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			got := map[uint64]string{}
			for id, m := range stored(t, db, "x") {
				got[id] = string(m.Payload)
			}
			assert.Equal(t, want, got)
		}
		for _, step := range []int{1, 7} {
			t.Run(fmt.Sprintf("step %d", step), func(t *testing.T) { check(t, s, step) })
		}
		usual := mysqltest.Value[int](t, s.Admin(t), "SELECT @@innodb_autoinc_lock_mode")
		for mode := range 3 {
			if mode == usual || testing.Short() && mode != 0 {
				continue // the shared instance has the usual mode; what differs most from it is the oldest
			}
			t.Run(fmt.Sprintf("lock mode %d", mode), func(t *testing.T) {
				check(t, s.Start(t, fmt.Sprintf("--innodb-autoinc-lock-mode=%d", mode)), 7)
			})
		}
	})
}

func TestIDsAreUnsigned(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		const high = uint64(1)<<63 + 5
		mysqltest.Exec(t, db.Pool(), "INSERT INTO x (id, payload) VALUES (?, '')", high)
		ids, err := newProducer(t, db, "x", Options{}).Publish(t.Context(), Message{}, Message{})
		require.NoError(t, err)
		assert.Equal(t, []uint64{high + 1, high + 2}, ids)
	})
}

func TestStatementsOfAPublish(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		db := topicOn(t, own, "x")
		install(t, db, "x")
		p := newProducer(t, db, "x", Options{})
		knows(t, p, db) // it has connected, and asked for the limits

		mysqltest.Eventually(t, "ten publishes are ten statements", func() bool { // a call that knows began may still be made
			before := own.Questions(t)
			for range 10 {
				_, err := p.Publish(t.Context(), Message{Payload: []byte("x")})
				require.NoError(t, err)
				ids, err := p.Publish(t.Context())
				require.NoError(t, err)
				require.Nil(t, ids)
			}
			return own.Questions(t)-before-1 == 10
		})
	})
}

// A batch of several statements stores nothing if one of them fails.
func TestPublishIsAllOrNothing(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		mysqltest.Exec(t, db.Pool(), "ALTER TABLE x ADD UNIQUE KEY (payload(16))")
		p := newProducer(t, db, "x", Options{BatchRows: 3})
		batch := func(last string) []Message {
			messages := make([]Message, 10)
			for i := range messages {
				messages[i].Payload = fmt.Appendf(nil, "%s %d", last, i)
			}
			messages[9].Payload = []byte(last)
			return messages
		}
		_, err := p.Publish(t.Context(), batch("first")...)
		require.NoError(t, err)
		mysqltest.Exec(t, db.Pool(), "DELETE FROM x WHERE payload <> 'first'")

		_, err = p.Publish(t.Context(), batch("first")...)
		var duplicate *mysql.MySQLError
		require.ErrorAs(t, err, &duplicate)
		assert.EqualValues(t, 1062, duplicate.Number)
		assert.True(t, SafeToRetry(err))
		assert.Equal(t, 1, count(t, db, "x"))

		_, err = p.Publish(t.Context(), batch("second")...) // the connection is in no transaction
		require.NoError(t, err)
		assert.Equal(t, 11, count(t, db, "x"))
	})
}

// In a session without autocommit the rows would stay in a transaction that nothing
// commits.
func TestPublishCommitsWithoutAutocommit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		reader := open(t, config)
		require.NoError(t, schema.Init(t.Context(), reader.Pool(), "x"))
		config.Params = map[string]string{"autocommit": "0"}
		p := newProducer(t, open(t, config), "x", Options{})
		for range 2 {
			_, err := p.Publish(t.Context(), Message{})
			require.NoError(t, err)
		}
		assert.Equal(t, 2, count(t, reader, "x"))
	})
}

// Text keeps its letters in a column of another character set, and a BLOB has the bytes.
func TestPayloadColumns(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		texts := []string{"é", strings.Repeat("é", 5<<20)} // the second is sent prepared
		db := topicOn(t, s, "x")
		for _, column := range []string{"LONGTEXT CHARACTER SET latin1", "LONGTEXT CHARACTER SET utf8mb4", "LONGBLOB"} {
			mysqltest.Exec(t, db.Pool(), "ALTER TABLE x MODIFY payload "+column+" NOT NULL")
			p := newProducer(t, db, "x", Options{})
			for _, text := range texts {
				ids, err := p.Publish(t.Context(), Message{Payload: []byte(text)})
				require.NoError(t, err)
				require.Equal(t, text, mysqltest.Value[string](t, db.Pool(), "SELECT payload FROM x WHERE id = ?", ids[0]), column)
			}
		}
		bytes := []byte{0xff, 0, '\\', '\'', 0xe9}
		ids, err := newProducer(t, db, "x", Options{}).Publish(t.Context(), Message{Payload: bytes})
		require.NoError(t, err)
		require.Equal(t, bytes, mysqltest.Value[[]byte](t, db.Pool(), "SELECT payload FROM x WHERE id = ?", ids[0]))
	})
}

// A server that stores names in lower case finds the database and the table by any spelling: the producer's flag and lock are the consumer's.
func TestNameFoldedToLowerCase(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if !s.IsMariaDB() {
			t.Skip("MySQL takes lower_case_table_names only when its data folder is made")
		}
		config := s.Start(t, "--lower-case-table-names=1").Database(t)
		db := open(t, config)
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
		_, err := newProducer(t, db, "Orders", Options{SetFlag: true}).Publish(t.Context(), Message{})
		require.NoError(t, err)
		counter, err := notify.Flag{Topic: "orders"}.Read(t.Context(), db.Pool())
		require.NoError(t, err)
		assert.EqualValues(t, 1, counter)
		upper := config.Clone()
		upper.DBName = strings.ToUpper(config.DBName)
		run(t, open(t, upper), "ORDERS", Options{})
		holder(t, db, "orders", 0)
	})
}

func TestFlag(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		log := newLogged()
		p := newProducer(t, db, "x", Options{SetFlag: true, Logger: slog.New(log)})
		for range 3 {
			_, err := p.Publish(t.Context(), Message{}, Message{})
			require.NoError(t, err)
		}
		counter, err := notify.Flag{Topic: "x"}.Read(t.Context(), db.Pool())
		require.NoError(t, err)
		assert.EqualValues(t, 3, counter)
		assert.Empty(t, log.messages())

		mysqltest.Exec(t, db.Pool(), "DROP TABLE "+schema.FlagTable)
		ids, err := p.Publish(t.Context(), Message{})
		require.NoError(t, err)
		assert.Contains(t, stored(t, db, "x"), ids[0])
		assert.Len(t, log.messages(), 1)
	})
}
