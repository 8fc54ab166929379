package consumer

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// runs returns what Run returns by itself for a topic, in a group and without.
func runs(tb testing.TB, db *notify.DB, topic string, options Options) []error {
	tb.Helper()
	var got collected
	alone := run(tb, db, topic, options, got.handler()).wait(tb)
	options.Group = "g"
	return []error{alone, run(tb, db, topic, options, got.handler()).wait(tb)}
}

// The error for a topic that can't be read names the object and the remedy.
func TestBadTables(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE VIEW orders_view AS SELECT * FROM orders")
		for _, c := range []struct {
			topic   string
			options Options
			want    error
			says    string
		}{
			{"order", Options{}, notify.ErrNoTable, "did you mean `orders`"},
			{"orders_view", Options{}, table.ErrView, "name the table behind it"},
			{"orders", Options{Columns: []string{"id", "paylod"}}, table.ErrNoColumn, "did you mean `payload`"},
			{"orders", Options{Key: "created_at"}, table.ErrNoKey, "is not an integer"},
			{"orders", Options{Where: "id > ?"}, notify.ErrOptions, "Where"},
			{"orders", Options{From: "last 1", Where: "id > ?"}, nil, ""},
			{"orders", Options{Where: "nothing = 1"}, nil, "nothing"},
			{"orders", Options{Where: "id >"}, nil, "1064"},
			{"orders", Options{Where: "id IN (SELECT id FROM nothing)"}, notify.ErrOptions, "names a table that does not exist"},
			{"orders", Options{From: "last 1", Where: "id IN (SELECT id FROM nothing)"}, notify.ErrOptions, "names a table that does not exist"},
			{"orders", Options{Where: "1) UNION SELECT (1"}, nil, ""},
			{"orders", Options{Where: "1); DROP TABLE orders; SELECT (1"}, nil, ""},
			{"orders", Options{From: time.Now().Format(time.RFC3339Nano), TimeColumn: "at"}, table.ErrNoColumn, "`at`"},
		} {
			for _, err := range runs(t, db, c.topic, c.options) {
				require.Error(t, err, c)
				if c.want != nil {
					require.ErrorIs(t, err, c.want)
				}
				require.ErrorContains(t, err, c.says)
			}
		}
		require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = 'orders'", db.Name()))
	})
}

func TestBadOptions(t *testing.T) {
	for says, options := range map[string]Options{
		"Group is longer":            {Group: strings.Repeat("ä", 129)},
		"Group is not UTF-8":         {Group: "\xff"},
		"ends with a space":          {Group: "g "},
		"Member is longer":           {Member: strings.Repeat("m", 256)},
		"Reset needs a Group":        {Reset: true},
		`no Mode "push"`:             {Mode: "push"},
		`no Flag "2"`:                {Flag: "2"},
		`no Writers "guess"`:         {Writers: "guess"},
		"PageRows is negative":       {PageRows: -1},
		"Grace is negative":          {Grace: -1},
		"HandlerTimeout is negative": {HandlerTimeout: -1},
		"StopTimeout is negative":    {StopTimeout: -1},
	} {
		_, err := New(nil, "orders", options)
		require.ErrorIs(t, err, notify.ErrOptions, says)
		require.ErrorContains(t, err, says)
	}
	for _, name := range []string{"", strings.Repeat("x", 65), "a\x00b", "orders "} {
		var invalid *ident.InvalidError
		_, err := New(nil, name, Options{})
		require.ErrorAs(t, err, &invalid, "%q", name)
		if name != "" {
			_, err = New(nil, "orders", Options{Key: name})
			require.ErrorAs(t, err, &invalid, "%q", name)
		}
	}
	_, err := New(nil, strings.Repeat("ü", 64), Options{Group: strings.Repeat("ä", 128), Member: strings.Repeat("m", 255)})
	require.NoError(t, err)
}

// A group needs the tables that init makes; a consumer without a group does not.
func TestNoState(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "one")
		do(t, db, "DROP TABLE mqnotify_offset, mqnotify_flag, mqnotify_dead_letter, mqnotify_schema")
		require.Equal(t, []uint64{1}, consumed(t, db, "orders", Options{From: "beginning"}))
		for _, options := range []Options{{Group: "g"}, {Flag: flagCounter}, {Flag: flagRow}} {
			var got collected
			err := run(t, db, "orders", options, got.handler()).wait(t)
			require.ErrorIs(t, err, notify.ErrNoState)
			require.ErrorContains(t, err, "mqnotify init")
		}
	})
}

// An account that may not use the tables of a group gets the error that callers check.
func TestDenied(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		openConfig(t, config, "orders")
		db, err := notify.OpenConfig(s.User(t, config, "SELECT ON `"+config.DBName+"`.orders"))
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		var got collected
		require.ErrorIs(t, run(t, db, "orders", Options{Group: "g"}, got.handler()).wait(t), notify.ErrDenied)
	})
}

// A server that can't be reached at the start is an error at once, which does not show the
// password. So is a server that refuses the password or lacks the database.
func TestNoServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		proxy := s.Proxy(t)
		proxy.Down()
		away := proxy.Config(config)
		away.Passwd = "s3cret"
		wrong := s.User(t, config)
		wrong.Passwd = "s3cret"
		nowhere := config.Clone()
		nowhere.DBName = "mq_nowhere"
		for says, config := range map[string]*mysql.Config{"connect": away, "1045": wrong, "mq_nowhere": nowhere} {
			db, err := notify.OpenConfig(config)
			require.NoError(t, err)
			start := time.Now()
			for _, err := range runs(t, db, "orders", Options{}) {
				require.Error(t, err)
				require.ErrorContains(t, err, says)
				require.NotContains(t, err.Error(), "s3cret")
			}
			require.Less(t, time.Since(start), patience)
			require.NoError(t, db.Close())
		}
	})
}

// With only SELECT on the topic, a consumer reads rows, and a group is refused with
// the missing privilege.
func TestLeastPrivileges(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		admin := openConfig(t, config, "orders")
		insert(t, admin, "orders", "one")
		reader, err := notify.OpenConfig(s.User(t, config, "SELECT ON "+config.DBName+".orders"))
		require.NoError(t, err)
		defer func() { require.NoError(t, reader.Close()) }()
		var got collected
		c := run(t, reader, "orders", Options{From: "beginning", Grace: 200 * time.Millisecond}, got.handler())
		got.waitFor(t, "one")
		conn := newConn(t, admin)
		onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
		insert(t, admin, "orders", "three")
		got.waitFor(t, "one", "three")
		onConn(t, conn, "COMMIT")
		got.waitFor(t, "one", "three", "late")
		require.NoError(t, c.end(t))
		k, err := New(reader, "orders", Options{Grace: time.Second})
		require.NoError(t, err)
		way, grace, err := k.Writers(t.Context())
		require.NoError(t, err)
		require.Equal(t, writersUnknown, way)
		require.Equal(t, time.Second, grace)

		for _, options := range []Options{{Group: "g"}, {Flag: flagCounter}} {
			err = run(t, reader, "orders", options, got.handler()).wait(t)
			require.EqualValues(t, 1142, number(err), "%v", err)
			require.ErrorContains(t, err, "mqnotify grants")
		}
		for _, way := range []string{writersMetadataLocks, writersInnoDBTrx} {
			err = run(t, reader, "orders", Options{Writers: way}, got.handler()).wait(t)
			require.ErrorIs(t, err, notify.ErrOptions)
			require.ErrorContains(t, err, way)
		}
		// Reading the offset's row is not enough.
		half, err := notify.OpenConfig(s.User(t, config, "SELECT ON "+config.DBName+".*"))
		require.NoError(t, err)
		defer func() { require.NoError(t, half.Close()) }()
		err = run(t, half, "orders", Options{Group: "g"}, got.handler()).wait(t)
		require.EqualValues(t, 1142, number(err), "%v", err)

		// These are exactly the privileges that a consumer needs.
		full, err := notify.OpenConfig(s.User(t, config, "SELECT ON "+config.DBName+".orders",
			"SELECT, INSERT, UPDATE ON "+config.DBName+".mqnotify_offset",
			"SELECT, INSERT, UPDATE ON "+config.DBName+".mqnotify_dead_letter"))
		require.NoError(t, err)
		defer func() { require.NoError(t, full.Close()) }()
		require.NoError(t, run(t, full, "orders", Options{Group: "g", From: "beginning", StopAtEnd: true, MaxAttempts: 1},
			Each(func(_ context.Context, m Message) error {
				if m.ID == 2 {
					return errHandler
				}
				return nil
			})).wait(t))
		require.Len(t, deadLetters(t, admin, letters), 1)
	})
}
