package producer

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/dberror"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

func TestErrorsNameTheTopicAndTheRemedy(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY, name TEXT)")
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE more (id INT AUTO_INCREMENT PRIMARY KEY, headers JSON, payload LONGBLOB, name INT NOT NULL)")
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE no_id (headers JSON, payload LONGBLOB)")
		mysqltest.Exec(t, db.Pool(), "CREATE VIEW grouped AS SELECT id, MAX(headers) AS headers, MAX(payload) AS payload FROM x GROUP BY id")
		for _, c := range []struct {
			topic, remedy string
			want          error
			retry         bool
		}{
			{"none", "mqnotify init", notify.ErrNoTable, true},
			{"other", "columns headers and payload", notify.ErrNotTopic, true},
			{"more", "a default for every other", notify.ErrNotTopic, true},
			{"grouped", "message table", notify.ErrNotTopic, true},
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
		require.ErrorIs(t, err, notify.ErrDenied)
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
		require.ErrorIs(t, err, notify.ErrReadOnly)
		assert.ErrorContains(t, err, "primary")
		assert.True(t, SafeToRetry(err))
		err = newProducer(t, user, "x", Options{Mode: modeHandshake}).Run(t.Context())
		require.ErrorIs(t, err, notify.ErrReadOnly)
		assert.ErrorContains(t, err, "primary")
		require.NotErrorIs(t, err, notify.ErrOptions)
	})
}

// Mistakes in a call are found without a server.
func TestBadCalls(t *testing.T) {
	config := mysql.NewConfig()
	config.DBName, config.Addr = "d", "127.0.0.1:1"
	db := open(t, config)
	for _, name := range []string{"", strings.Repeat("x", 65), "nul\x00", "end "} {
		_, err := New(db, name, Options{})
		var invalid *ident.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.ErrorIs(t, err, notify.ErrOptions)
		_, err = New(db, name, Options{Mode: modeHandshake})
		require.ErrorAs(t, err, &invalid)
	}
	for _, options := range []Options{{BatchRows: -1}, {BatchRows: 40_000}, {BatchBytes: -1}} {
		_, err := New(db, "x", options)
		require.ErrorContains(t, err, "Batch")
		require.ErrorIs(t, err, notify.ErrOptions)
	}

	p := newProducer(t, db, "x", Options{})
	ids, err := p.Publish(t.Context())
	require.NoError(t, err)
	assert.Nil(t, ids)
	for _, headers := range []map[string]string{{"bad": "\xff"}, {"\xff": ""}} {
		_, err = p.Publish(t.Context(), Message{}, Message{Headers: headers})
		require.ErrorIs(t, err, notify.ErrOptions)
		require.ErrorContains(t, err, "message 2 of 2")
		require.ErrorContains(t, err, "payload")
	}
	_, err = p.Publish(t.Context(), Message{}) // no server there
	require.ErrorContains(t, err, "connect")
	assert.True(t, SafeToRetry(err))

	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = p.Publish(t.Context(), Message{})
	require.ErrorIs(t, err, notify.ErrClosed)
	_, err = p.PublishTx(t.Context(), nil, Message{})
	require.ErrorIs(t, err, notify.ErrClosed)
	require.ErrorIs(t, p.Transact(t.Context(), nil), notify.ErrClosed)
	assert.False(t, SafeToRetry(nil))
}

// A client's error that a proxy passes on leaves open whether the row is stored.
func TestRelayedError(t *testing.T) {
	t.Parallel()
	err := dberror.Unknown(&mysql.MySQLError{Number: 2013, Message: "Lost connection to MySQL server during query"})
	require.ErrorIs(t, err, notify.ErrUnknown)
	require.False(t, SafeToRetry(err))
}

// An INSERT that waits for a table longer than ReadTimeout is sent again, and its result is known.
func TestPublishToALockedTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "x", "other"))
		install(t, db, "other")
		config.ReadTimeout = 2 * time.Second
		p := newProducer(t, open(t, config), "x", Options{})
		_, err := p.Publish(t.Context(), Message{})
		require.NoError(t, err)
		knowsCalls(t, p)
		conn, err := db.Pool().Conn(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		_, err = conn.ExecContext(t.Context(), "LOCK TABLES x WRITE")
		require.NoError(t, err)
		published := mysqltest.Result(func() error {
			_, err := p.Publish(t.Context(), Message{})
			return err
		})
		mysqltest.Window(t, 2*config.ReadTimeout)
		_, err = conn.ExecContext(t.Context(), "UNLOCK TABLES")
		require.NoError(t, err)
		require.NoError(t, mysqltest.Receive(t, published))
		require.Equal(t, 2, count(t, db, "x"))
	})
}
