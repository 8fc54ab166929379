package producer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
	schema "github.com/mqnotify/mqnotify/sql"
)

func everyByte() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

// What goes in comes out, byte by byte, under every mode that changes how a
// string is written.
func TestPublishStoresWhatItIsGiven(t *testing.T) {
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
		for _, topic := range []string{
			"select", "back`tick", "a b", " in front", "'quoted'", `"double"`, "ünïcödé 日本", "semi;colon -- #",
			"`; DROP TABLE x; --", "what?", "a/*b*/", strings.Repeat("é", 64),
		} {
			db := topicOn(t, s, topic)
			p := newProducer(t, db, topic, Options{})
			ids, err := p.Publish(t.Context(), Message{Payload: []byte("1")}, Message{Payload: []byte("2")})
			require.NoError(t, err, topic)
			assert.Equal(t, map[uint64]Message{ids[0]: {Payload: []byte("1")}, ids[1]: {Payload: []byte("2")}},
				stored(t, db, topic), topic)
		}
	})
}

// The ids that Publish works out are those of the rows, with many publishers at
// once, in every lock mode of AUTO_INCREMENT and with ids in steps.
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
					for round := range 30 {
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
		for _, step := range []int{1, 3} {
			t.Run(fmt.Sprintf("step %d", step), func(t *testing.T) { check(t, s, step) })
		}
		for mode := range 3 {
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
		exec(t, db, "INSERT INTO x (id, payload) VALUES (?, '')", high)
		ids, err := newProducer(t, db, "x", Options{}).Publish(t.Context(), Message{}, Message{})
		require.NoError(t, err)
		assert.Equal(t, []uint64{high + 1, high + 2}, ids)
	})
}

func TestOneMessageIsOneStatementAndNoneIsNone(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		db := topicOn(t, own, "x")
		p := newProducer(t, db, "x", Options{})
		_, err := p.Publish(t.Context(), Message{}) // connects, and asks for the limits
		require.NoError(t, err)

		before := own.Questions(t)
		for range 10 {
			_, err := p.Publish(t.Context(), Message{Payload: []byte("x")})
			require.NoError(t, err)
			ids, err := p.Publish(t.Context())
			require.NoError(t, err)
			require.Nil(t, ids)
		}
		assert.Equal(t, uint64(10), own.Questions(t)-before-1)
	})
}

// A batch of several statements leaves nothing when one of them fails.
func TestPublishIsAllOrNothing(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		exec(t, db, "ALTER TABLE x ADD UNIQUE KEY (payload(16))")
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
		exec(t, db, "DELETE FROM x WHERE payload <> 'first'")

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

// A session without autocommit would leave the rows in a transaction that nobody
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

// Payloads that need a backslash before each byte fit up to the server's own
// limit, and what does not fit is refused before it is sent.
func TestLargeMessages(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		p := newProducer(t, db, "x", Options{})
		_, err := p.Publish(t.Context(), Message{})
		require.NoError(t, err)
		packet := p.caps.Load().MaxAllowedPacket
		headers := map[string]string{"a": "b"}
		for _, size := range []int{packet / 4, packet / 2, packet - around - len(`{"a":"b"}`) - 1} {
			payload := bytes.Repeat([]byte{'\'', 0}, size/2+1)[:size]
			ids, err := p.Publish(t.Context(), Message{Payload: payload, Headers: headers})
			require.NoError(t, err, "%d bytes", size)
			var got []byte
			require.NoError(t, db.Pool().GetContext(t.Context(), &got, "SELECT payload FROM x WHERE id = ?", ids[0]))
			require.True(t, bytes.Equal(payload, got), "%d bytes", size)
		}

		before := count(t, db, "x")
		for _, size := range []int{packet, 64 << 20} {
			_, err = p.Publish(t.Context(), Message{}, Message{Payload: make([]byte, size)})
			var tooLarge *TooLargeError
			require.ErrorAs(t, err, &tooLarge)
			assert.ErrorIs(t, err, ErrTooLarge)
			assert.Equal(t, TooLargeError{Message: 1, Size: size + around, Limit: packet}, *tooLarge)
			assert.ErrorContains(t, err, "max_allowed_packet")
			assert.True(t, SafeToRetry(err))
		}
		assert.Equal(t, before, count(t, db, "x"))
	})
}

// Neither a server nor a driver that takes small packets only gets larger ones.
func TestSmallPackets(t *testing.T) {
	messages := make([]Message, 200)
	for i := range messages {
		messages[i].Payload = bytes.Repeat([]byte{'"', byte(i)}, 10*i)
	}
	check := func(t *testing.T, db *notify.DB, messages []Message) {
		t.Helper()
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "x"))
		ids, err := newProducer(t, db, "x", Options{}).Publish(t.Context(), messages...)
		require.NoError(t, err)
		got := stored(t, db, "x")
		for i, id := range ids {
			require.True(t, bytes.Equal(messages[i].Payload, got[id].Payload), "message %d", i)
		}
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		t.Run("server", func(t *testing.T) {
			own := s.Start(t, "--max-allowed-packet=16K", "--net-buffer-length=16K")
			check(t, open(t, own.Database(t)), messages)
		})
		t.Run("driver", func(t *testing.T) {
			for _, packet := range []int{1 << 10, 16 << 10, 0} {
				config := s.Database(t)
				config.MaxAllowedPacket = packet
				check(t, open(t, config), append(messages[:200:200], Message{Payload: make([]byte, 1<<20)}))
				check(t, open(t, config), make([]Message, 1000))
			}
		})
	})
}

func TestHint(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		log := newLogged()
		p := newProducer(t, db, "x", Options{Hint: Flag, Logger: slog.New(log)})
		for range 3 {
			_, err := p.Publish(t.Context(), Message{}, Message{})
			require.NoError(t, err)
		}
		counter, err := notify.Flag{Topic: "x"}.Read(t.Context(), db.Pool())
		require.NoError(t, err)
		assert.EqualValues(t, 3, counter)
		assert.Empty(t, log.messages())

		exec(t, db, "DROP TABLE "+schema.FlagTable)
		ids, err := p.Publish(t.Context(), Message{})
		require.NoError(t, err)
		assert.Contains(t, stored(t, db, "x"), ids[0])
		assert.Len(t, log.messages(), 1)
	})
}

func TestErrorsNameTheTopicAndTheRemedy(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		exec(t, db, "CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY, name TEXT)")
		exec(t, db, "CREATE TABLE more (id INT AUTO_INCREMENT PRIMARY KEY, headers JSON, payload LONGBLOB, name INT NOT NULL)")
		exec(t, db, "CREATE TABLE no_id (headers JSON, payload LONGBLOB)")
		exec(t, db, "CREATE VIEW grouped AS SELECT id, MAX(headers) AS headers, MAX(payload) AS payload FROM x GROUP BY id")
		for _, c := range []struct {
			topic, remedy string
			want          error
			retry         bool
		}{
			{"none", "mqnotify init", ErrNoTopic, true},
			{"other", "columns headers and payload", ErrNotTopic, true},
			{"more", "a default for every other", ErrNotTopic, true},
			{"grouped", "message table", ErrNotTopic, true},
			{"no_id", "AUTO_INCREMENT", ErrNoID, false},
		} {
			_, err := newProducer(t, db, c.topic, Options{}).Publish(t.Context(), Message{})
			require.ErrorIs(t, err, c.want)
			assert.ErrorContains(t, err, ident.Quote(c.topic))
			assert.ErrorContains(t, err, c.remedy)
			assert.Equal(t, c.retry, SafeToRetry(err), c.topic)
		}

		config := s.Database(t)
		require.NoError(t, schema.Init(t.Context(), open(t, config).Pool(), "x"))
		reader := open(t, s.User(t, config, "SELECT ON "+ident.Quote(config.DBName)+".*"))
		_, err := newProducer(t, reader, "x", Options{}).Publish(t.Context(), Message{})
		require.ErrorIs(t, err, ErrDenied)
		assert.ErrorContains(t, err, "mqnotify grants")

		writer := open(t, s.User(t, config, "INSERT ON "+ident.Quote(config.DBName)+".`x`"))
		_, err = newProducer(t, writer, "x", Options{BatchRows: 1}).Publish(t.Context(), Message{}, Message{})
		require.NoError(t, err) // INSERT is all that a producer needs
	})
}

func TestReadOnlyServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config := own.Database(t)
		require.NoError(t, schema.Init(t.Context(), open(t, config).Pool(), "x"))
		user := open(t, own.User(t, config, "ALL ON "+ident.Quote(config.DBName)+".*"))
		admin := own.Admin(t)
		_, err := admin.ExecContext(t.Context(), "SET GLOBAL read_only = 1")
		require.NoError(t, err)
		defer func() {
			_, err := admin.ExecContext(context.Background(), "SET GLOBAL read_only = 0")
			require.NoError(t, err)
		}()
		_, err = newProducer(t, user, "x", Options{}).Publish(t.Context(), Message{})
		require.ErrorIs(t, err, ErrReadOnly)
		assert.ErrorContains(t, err, "primary")
		assert.True(t, SafeToRetry(err))
	})
}

// What is wrong with the call needs no server to say so.
func TestBadCalls(t *testing.T) {
	config := mysql.NewConfig()
	config.DBName, config.Addr = "d", "127.0.0.1:1"
	db := open(t, config)
	for _, name := range []string{"", strings.Repeat("x", 65), "nul\x00", "end "} {
		_, err := New(db, name, Options{})
		var invalid *ident.InvalidError
		require.ErrorAs(t, err, &invalid)
		_, err = NewHandshake(db, name, Options{})
		require.ErrorAs(t, err, &invalid)
	}
	for _, options := range []Options{{BatchRows: -1}, {BatchRows: 40_000}, {BatchBytes: -1}} {
		_, err := New(db, "x", options)
		require.ErrorContains(t, err, "Batch")
	}

	p := newProducer(t, db, "x", Options{})
	ids, err := p.Publish(t.Context())
	require.NoError(t, err)
	assert.Nil(t, ids)
	for _, headers := range []map[string]string{{"bad": "\xff"}, {"\xff": ""}} {
		_, err = p.Publish(t.Context(), Message{}, Message{Headers: headers})
		require.ErrorContains(t, err, "message 2 of 2")
		require.ErrorContains(t, err, "payload")
	}
	_, err = p.Publish(t.Context(), Message{}) // no server there
	require.ErrorContains(t, err, "connect")
	assert.True(t, SafeToRetry(err))

	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = p.Publish(t.Context(), Message{})
	require.ErrorIs(t, err, ErrClosed)
	_, err = p.PublishTx(t.Context(), nil, Message{})
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, p.Transact(t.Context(), nil), ErrClosed)
	assert.False(t, SafeToRetry(nil))
}

// Every message whose publish succeeded survives a server that is killed in the
// middle, each once; one whose error is safe to retry is not there.
func TestServerKilledInTheMiddle(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		db := topicOn(t, own, "x")
		p := newProducer(t, db, "x", Options{BatchRows: 3})
		var mu sync.Mutex
		answers := map[string]error{}
		succeeded := make(chan struct{}, 10_000)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for publisher := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					name := fmt.Sprintf("%d %d", publisher, i)
					messages := make([]Message, 1+i%5) // a statement, or a transaction of two
					for j := range messages {
						messages[j].Payload = []byte(name)
					}
					_, err := p.Publish(ctx, messages...)
					mu.Lock()
					answers[name] = err
					mu.Unlock()
					if err != nil {
						return
					}
					succeeded <- struct{}{}
				}
			})
		}
		for range 200 {
			<-succeeded
		}
		own.Kill()
		wg.Wait()
		own.Restart(t)

		copies := map[string]int{}
		for _, m := range stored(t, db, "x") {
			copies[string(m.Payload)]++
		}
		for name, err := range answers {
			var publisher, i int
			_, scanErr := fmt.Sscanf(name, "%d %d", &publisher, &i)
			require.NoError(t, scanErr)
			all := 1 + i%5
			switch {
			case err == nil:
				assert.Equal(t, all, copies[name], "published: %s", name)
			case SafeToRetry(err):
				assert.Zero(t, copies[name], "failed: %s: %v", name, err)
			default:
				assert.ErrorIs(t, err, ErrUnknown)
				assert.Contains(t, []int{0, all}, copies[name], "unknown: %s", name)
			}
		}
		_, err := p.Publish(t.Context(), Message{}) // and on it goes
		require.NoError(t, err)
	})
}

// A commit without an answer ends with the context, and is neither called a
// failure nor tried again.
func TestNoAnswer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, messages := range map[string]int{"statement": 1, "transaction": 2} {
			t.Run(name, func(t *testing.T) {
				db := topicOn(t, s, "x")
				p := newProducer(t, db, "x", Options{BatchRows: 1})
				_, err := p.Publish(t.Context(), Message{}) // connects
				require.NoError(t, err)
				exec(t, db, "DELETE FROM x")
				exec(t, db, "ALTER TABLE x ADD COLUMN slow INT")
				// The server is busy with the statement, or has not begun it, when the
				// context ends.
				exec(t, db, "CREATE TRIGGER slow BEFORE INSERT ON x FOR EACH ROW SET NEW.slow = SLEEP(2)")
				ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errors.New("too late"))
				defer cancel()
				begun := time.Now()
				_, err = p.Publish(ctx, make([]Message, messages)...)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Less(t, time.Since(begun), time.Second)
				// Of a transaction nothing is committed before COMMIT.
				assert.Equal(t, messages == 1, errors.Is(err, ErrUnknown), "%v", err)
				assert.Equal(t, messages > 1, SafeToRetry(err))
				if messages > 1 {
					var busy int
					require.Eventually(t, func() bool {
						return db.Pool().GetContext(context.Background(), &busy, "SELECT COUNT(*) FROM information_schema.processlist "+
							"WHERE db = ? AND info LIKE 'INSERT%'", db.Name()) == nil && busy == 0
					}, 30*time.Second, 20*time.Millisecond)
					assert.Zero(t, count(t, db, "x"))
				}
			})
		}
	})
}
