package wake_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

func openTopic(t *testing.T, s *mysqltest.Server, topics ...string) *notify.DB {
	t.Helper()
	db, err := notify.OpenConfig(s.Database(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, schema.Init(t.Context(), db.Pool(), topics...))
	return db
}

func options(t *testing.T) wake.Options {
	return wake.Options{Logger: mysqltest.Logger(t, slog.LevelInfo)}
}

// TestInstall creates triggers, keeps existing ones, shows and removes them.
func TestInstall(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s, "orders", "o`rders", "it's")
		all := options(t)
		all.Events = []string{"insert", "update", "delete"}
		for range 2 {
			require.NoError(t, wake.Install(t.Context(), db, all, "orders"))
			require.NoError(t, wake.Install(t.Context(), db, options(t), "o`rders", "it's"))
			states, err := wake.Status(t.Context(), db)
			require.NoError(t, err)
			shown := make(map[string][]string)
			for _, s := range states {
				require.Empty(t, s.Problem)
				shown[s.Table] = append(shown[s.Table], s.Event)
			}
			require.Equal(t, map[string][]string{"orders": {"insert", "update", "delete"}, "o`rders": {"insert"}, "it's": {"insert"}}, shown)
		}
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')", "UPDATE orders SET payload = 'y'", "DELETE FROM orders")
		removed, err := wake.Remove(t.Context(), db, options(t), "orders")
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"mqnotify_wake_insert_orders", "mqnotify_wake_update_orders", "mqnotify_wake_delete_orders"}, removed)
		states, err := wake.Status(t.Context(), db)
		require.NoError(t, err)
		require.Len(t, states, 2)
	})
}

// A table that is renamed takes its triggers with it. Install makes those of the table that has the name now, unless a trigger with the
// name belongs to another program.
func TestInstallAfterRename(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s, "orders")
		installed := func() []string {
			t.Helper()
			states, err := wake.Status(t.Context(), db)
			require.NoError(t, err)
			var names []string
			for _, s := range states {
				require.Empty(t, s.Problem)
				names = append(names, s.Table+" "+s.Event)
			}
			return names
		}
		all := options(t)
		all.Events = []string{"insert", "delete"}
		require.NoError(t, wake.Install(t.Context(), db, all, "orders"))
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE orders_new LIKE orders", "RENAME TABLE orders TO orders_2025, orders_new TO orders")
		require.Empty(t, installed())
		require.NoError(t, wake.Install(t.Context(), db, all, "orders"))
		require.Equal(t, []string{"orders insert", "orders delete"}, installed())
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')", "INSERT INTO orders_2025 (payload) VALUES ('x')")

		restored, err := waiting.Trigger("another", "orders", "insert") // as a dump of another database has it
		require.NoError(t, err)
		mysqltest.ExecAll(t, db.Pool(), "DROP TRIGGER mqnotify_wake_insert_orders", strings.Replace(restored, " ON `orders`", " ON `orders_2025`", 1))
		require.Equal(t, []string{"orders delete"}, installed())
		require.NoError(t, wake.Install(t.Context(), db, all, "orders"))
		require.Equal(t, []string{"orders insert", "orders delete"}, installed())

		mysqltest.ExecAll(t, db.Pool(), "DROP TRIGGER mqnotify_wake_insert_orders",
			"CREATE TRIGGER mqnotify_wake_insert_orders AFTER INSERT ON orders_2025 FOR EACH ROW SET @seen = 1")
		err = wake.Install(t.Context(), db, all, "orders")
		require.ErrorContains(t, err, "on `orders_2025`")
		require.Equal(t, []string{"orders delete"}, installed())
	})
}

// TestInstallBesideAWriter waits for a transaction that uses the table, and delays other transactions only for a moment.
func TestInstallBesideAWriter(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s, "orders")
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		mysqltest.Exec(t, tx, "INSERT INTO orders (payload) VALUES ('x')")
		hasty := options(t)
		hasty.Patience = time.Millisecond
		require.ErrorIs(t, wake.Install(t.Context(), db, hasty, "orders"), wake.ErrBusy)
		installed := mysqltest.Result(func() error { return wake.Install(t.Context(), db, options(t), "orders") })
		for range 3 { // between two tries
			mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('y')")
		}
		require.NoError(t, tx.Commit())
		require.NoError(t, mysqltest.Receive(t, installed))
	})
}

// In a system database no trigger can be created.
func TestSystemDatabase(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config := own.Database(t)
		config.DBName = "mysql"
		db, err := notify.OpenConfig(config)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
		require.ErrorIs(t, wake.Install(t.Context(), db, options(t), "orders"), wake.ErrDenied)
		require.NoError(t, wake.InstallAll(t.Context(), db, mysqltest.Logger(t, slog.LevelInfo), "orders"), "it warns")
	})
}

func TestDenied(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		admin, err := notify.OpenConfig(config)
		require.NoError(t, err)
		defer func() { require.NoError(t, admin.Close()) }()
		require.NoError(t, schema.Init(t.Context(), admin.Pool(), "orders"))
		db, err := notify.OpenConfig(s.User(t, config, "SELECT, INSERT ON `"+config.DBName+"`.*"))
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		require.ErrorIs(t, wake.Install(t.Context(), db, options(t), "orders"), wake.ErrDenied)
		// The triggers of the other account suffice.
		require.NoError(t, wake.Install(t.Context(), admin, options(t), "orders"))
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
	})
}

func TestView(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s, "orders")
		mysqltest.Exec(t, db.Pool(), "CREATE VIEW seen AS SELECT * FROM orders")
		require.ErrorIs(t, wake.Install(t.Context(), db, options(t), "seen"), wake.ErrView)
	})
}

// The routine and the library find the same gate for every table, and the trigger of every table has its name.
func TestGates(t *testing.T) {
	names := []string{"orders", "Orders", "größe", "注文", "it's", `a\b`, "two words", "ÀÉ", "mqnotify_notification", "MQNOTIFY_notification", "ı", "ſ", "K"}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		for _, name := range names {
			var gate int
			require.NoError(t, db.Pool().GetContext(t.Context(), &gate,
				"SELECT IF(LOWER(topic) = 'mqnotify_notification', 8, CRC32(LOWER(CONVERT(topic USING ascii))) % 8) FROM (SELECT ? AS topic) names", name))
			require.Equal(t, waiting.Gate(name), gate, ident.Quote(name))
		}
	})
}

// A listener of another account is woken if it may execute the routines, and if the trigger's account may kill its
// sessions. Otherwise it learns that it polls.
func TestAnotherAccount(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		admin, err := notify.OpenConfig(config)
		require.NoError(t, err)
		defer func() { require.NoError(t, admin.Close()) }()
		require.NoError(t, schema.Init(t.Context(), admin.Pool(), "orders"))
		require.NoError(t, wake.Install(t.Context(), admin, options(t), "orders"))
		ready := func(grants ...string) error {
			t.Helper()
			account := s.User(t, config, append(grants, "SELECT ON `"+config.DBName+"`.*")...)
			l := waiting.New(account, options(t).Logger).Listen(waiting.Topic{Table: "orders", Head: "SELECT MAX(id) FROM orders"})
			defer func() { require.NoError(t, l.Close()) }()
			return l.Ready(t.Context())
		}
		procedure := "EXECUTE ON PROCEDURE `" + config.DBName + "`."
		mysqltest.Eventually(t, "it is woken", func() bool { return ready(procedure+waiting.WakeRoutine, procedure+waiting.TablesRoutine) == nil })
		require.Error(t, ready(procedure+waiting.TablesRoutine))
		require.ErrorIs(t, ready(procedure+waiting.WakeRoutine), waiting.ErrNoTrigger)
		require.ErrorIs(t, ready(), waiting.ErrNoTrigger)
	})
}

// A trigger whose account may not kill the listener's session wakes no listener: the session finds this out before it leads.
func TestAccountThatMayNotKill(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		all := "ALL ON `" + config.DBName + "`.*"
		weak, err := notify.OpenConfig(s.User(t, config, all))
		require.NoError(t, err)
		defer func() { require.NoError(t, weak.Close()) }()
		require.NoError(t, schema.Init(t.Context(), weak.Pool(), "orders"))
		admin, err := notify.OpenConfig(config)
		require.NoError(t, err)
		defer func() { require.NoError(t, admin.Close()) }()
		if !s.IsMariaDB() { // its binary log is on
			mysqltest.Exec(t, admin.Pool(), "SET GLOBAL log_bin_trust_function_creators = 1")
		}
		require.NoError(t, wake.Install(t.Context(), weak, options(t), "orders"))
		user := s.User(t, config, all)
		commands := mysqltest.CountCommands(user)
		l := waiting.New(user, options(t).Logger).Listen(waiting.Topic{Table: "orders", Head: "SELECT MAX(id) FROM orders"})
		defer func() { require.NoError(t, l.Close()) }()
		require.ErrorContains(t, l.Ready(t.Context()), "mqnotify_wake")
		require.Less(t, commands.Statements(), uint64(200), "the trial is no busy loop")
		states, err := wake.Status(t.Context(), weak)
		require.NoError(t, err)
		require.Len(t, states, 1)
		require.Empty(t, states[0].Problem, "it can wake sessions of its own account")
	})
}

// Writes fail when the trigger's account is gone, or has lost TRIGGER; a new installation repairs them, and other accounts may still
// execute the procedures. A second administrator creates triggers in the name of the first.
func TestLostDefiner(t *testing.T) {
	for name, lost := range map[string]struct {
		how    string
		number uint16
	}{
		"privilege": {"REVOKE TRIGGER ON `{db}`.* FROM {account}", server.ErrTableAccessDenied},
		"account":   {"DROP USER {account}", server.ErrNoSuchDefiner},
	} {
		t.Run(name, func(t *testing.T) { testLostDefiner(t, lost.how, lost.number) })
	}
}

func testLostDefiner(t *testing.T, how string, number uint16) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		anyMode := config.Clone()
		anyMode.Params = map[string]string{"sql_mode": "'NO_BACKSLASH_ESCAPES'"}
		admin, err := notify.OpenConfig(anyMode)
		require.NoError(t, err)
		defer func() { require.NoError(t, admin.Close()) }()
		if !s.IsMariaDB() { // its binary log is on
			mysqltest.Exec(t, admin.Pool(), "SET GLOBAL log_bin_trust_function_creators = 1")
		}
		granted := strings.ReplaceAll(config.DBName, "_", `\_`) // as panels write it, because _ would stand for any character
		account := s.User(t, config, "ALL ON `"+granted+"`.*")
		owner, err := notify.OpenConfig(account)
		require.NoError(t, err)
		defer func() { require.NoError(t, owner.Close()) }()
		require.NoError(t, schema.Init(t.Context(), owner.Pool(), "orders", "invoices"))
		require.NoError(t, wake.Install(t.Context(), owner, options(t), "orders"))
		require.NoError(t, wake.Install(t.Context(), admin, options(t), "orders", "invoices"))
		state := func() wake.State {
			t.Helper()
			states, err := wake.Status(t.Context(), admin)
			require.NoError(t, err)
			require.Len(t, states, 2)
			require.Equal(t, states[0].Definer, states[1].Definer)
			return states[1]
		}
		write := func() error {
			_, err := admin.Pool().ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('x')")
			return err
		}
		require.Empty(t, state().Problem)
		require.NoError(t, write())
		caller := open(t, s.User(t, config, "EXECUTE ON PROCEDURE `"+config.DBName+"`."+schema.OpenWritersRoutine))

		mysqltest.Exec(t, admin.Pool(), strings.NewReplacer("{db}", granted, "{account}", "'"+account.User+"'@'%'").Replace(how))
		require.True(t, server.Is(write(), number))
		require.Contains(t, state().Problem, fmt.Sprint(number))
		require.True(t, state().WritesFail)
		require.NoError(t, wake.Install(t.Context(), admin, options(t), "orders", "invoices"))
		require.Empty(t, state().Problem)
		require.NoError(t, write())
		mysqltest.Exec(t, caller.Pool(), "CALL "+schema.OpenWritersRoutine+"(1)") // it is the administrator's now
	})
}

// If a server writes a binary log, only administrators may create triggers; the error contains the statement to type.
func TestBinaryLog(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t, "--log-bin", "--server-id=1", "--log-bin-trust-function-creators=0")
		config := s.Database(t)
		db, err := notify.OpenConfig(s.User(t, config, "ALL ON `"+config.DBName+"`.*"))
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
		err = wake.Install(t.Context(), db, options(t), "orders")
		require.ErrorIs(t, err, wake.ErrDenied)
		require.ErrorContains(t, err, "SET GLOBAL log_bin_trust_function_creators = 1")
		mysqltest.Exec(t, s.Admin(t), "SET GLOBAL log_bin_trust_function_creators = 1")
		require.NoError(t, wake.Install(t.Context(), db, options(t), "orders"))
	})
}
