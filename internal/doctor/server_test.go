package doctor

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
)

func TestHealthy(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, db := initialised(t, s)
		found := examine(t, db, "orders")
		assert.Empty(t, found.worse(), "%v", found)
		for _, c := range serverChecks {
			if c.name == "delay" {
				assert.Empty(t, found.of(c.name), "there is no other server")
				continue
			}
			assert.Empty(t, found.only(t, c.name).Topic)
		}
		for _, c := range topicChecks {
			assert.Equal(t, "orders", found.only(t, c.name).Topic)
		}
		flavour := "MySQL"
		if s.IsMariaDB() {
			flavour = "MariaDB"
		}
		assert.Contains(t, found.only(t, "server").Text, flavour)
	})
}

// The checks do not depend on the sql_mode.
func TestHealthyInAnyMode(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := initialised(t, s)
		config.Params = map[string]string{"sql_mode": "'ANSI,NO_BACKSLASH_ESCAPES,TRADITIONAL'"}
		found := examine(t, open(t, config), "orders")
		assert.Empty(t, found.worse(), "%v", found)
	})
}

// The doctor finds that text arrives damaged because something has changed the connection's character set.
func TestDamagedText(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, db := initialised(t, s)
		assert.Equal(t, OK, examine(t, db).only(t, "text").Level)
		db.Pool().SetMaxOpenConns(1)
		mysqltest.Exec(t, db.Pool(), "SET NAMES latin1")
		says(t, examine(t, db).only(t, "text"), Problem, "the server reads it in the character set latin1", "let no setting or proxy (such as init_connect) change the character set")
	})
}

// The doctor finds a multiplexing proxy, both one that always distributes the statements among sessions and one that does so
// only when a session is busy.
func TestMultiplexingProxy(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := initialised(t, s)
		network := s.Proxy(t)
		assert.Empty(t, examine(t, open(t, network.Config(config)), "orders").worse(), "a proxy that keeps one session per client is no problem")

		proxy := s.Multiplexer(t, 3)
		for _, text := range []string{"a proxy shares sessions among its clients", "reach the same session"} {
			found := examine(t, open(t, proxy.Config(config)), "orders")
			says(t, found.only(t, "session"), Problem, text, "connect to the server itself")
			assert.Equal(t, "session", found[len(found)-1].Check, "no later check can be trusted")
			proxy.OnlyWhenBusy()
		}
	})
}

func TestReadOnly(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t)
		config, db := initialised(t, s)
		limited := s.User(t, config, "SELECT, INSERT, UPDATE, DELETE ON "+config.DBName+".*")
		mysqltest.ExecAll(t, s.Admin(t), "SET GLOBAL read_only = 1")
		defer mysqltest.ExecAll(t, s.Admin(t), "SET GLOBAL read_only = 0")

		found := examine(t, open(t, limited), "orders")
		says(t, found.only(t, "writes"), Problem, "read-only", "connect to the primary")
		says(t, found.of("privileges").worse()[0], Warning, "can't produce", "connect to the primary")
		says(t, found.of("privileges")[0], OK, "can consume", "")

		says(t, examine(t, db).only(t, "writes"), Warning, "although this account may write", "primary")
	})
}

func TestUnreachable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)

		wrong := s.User(t, config, "SELECT ON "+config.DBName+".*")
		wrong.Passwd = "t0p-secret"
		found := examine(t, open(t, wrong), "orders")
		says(t, found.only(t, "connection"), Problem, "1045", "check user and password")
		assert.Len(t, found, 1)
		assert.NotContains(t, found.String(), "t0p-secret")

		nowhere := config.Clone()
		nowhere.DBName = "no_such_database"
		says(t, examine(t, open(t, nowhere)).only(t, "connection"), Problem, "no_such_database", "CREATE DATABASE")

		proxy := s.Proxy(t)
		proxy.Down()
		says(t, examine(t, open(t, proxy.Config(config))).only(t, "connection"), Problem, "refused", "check that the server runs there")

		stranger, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				conn, err := stranger.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte("SSH-2.0-OpenSSH_9.2\r\n"))
				conn.Close()
			}
		}()
		defer func() { stranger.Close(); <-ended }()
		ssh := config.Clone()
		ssh.Addr = stranger.Addr().String()
		says(t, examine(t, open(t, ssh)).only(t, "connection"), Problem, "no connection", "check that this is the port")
	})
}

func TestFrozenServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t)
		_, db := initialised(t, s)
		options := Options{Topics: []string{"orders"}, Timeout: prompt}

		var found findings
		for r := range Examine(t.Context(), db, options) {
			if found = append(found, r); r.Check == "gtid" {
				s.Freeze()
			}
		}
		says(t, found[len(found)-1], Problem, "no answer within "+prompt.String(), "check the server and the network")
		assert.Equal(t, "timeouts", found[len(found)-1].Check, "no check runs after the server hangs")
	})
}

// The doctor tries to connect only once to a server that hangs from the start.
func TestFrozenConnection(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := initialised(t, s)
		proxy := s.Proxy(t)
		db := open(t, proxy.Config(config))
		proxy.Freeze()
		const bound = 500 * time.Millisecond
		found := examineWith(t, db, Options{Topics: []string{"orders"}, Timeout: bound})
		says(t, found.only(t, "connection"), Problem, "no answer within "+bound.String(), "not overloaded")
		assert.Len(t, found, 1)
	})
}

func TestConnectionLost(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := initialised(t, s)
		proxy := s.Proxy(t)
		var found findings
		for r := range Examine(t.Context(), open(t, proxy.Config(config)), Options{Timeout: time.Minute}) {
			if found = append(found, r); r.Check == "cluster" {
				proxy.Down()
			}
		}
		assert.Equal(t, "timeouts", found[len(found)-1].Check, "%v", found)
		says(t, found[len(found)-1], Problem, "the connection was lost", "error log")
	})
}

// A caller that reads only the first results, or ends the context, leaves no session and no lock behind. The cleanup of the
// database checks that.
func TestAbandoned(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		for r := range Examine(t.Context(), db, Options{Timeout: time.Minute}) {
			assert.Equal(t, "connection", r.Check)
			break
		}
		ctx, cancel := context.WithCancel(t.Context())
		var found findings
		for r := range Examine(ctx, db, Options{Timeout: time.Minute}) {
			if found = append(found, r); r.Check == "clock" {
				cancel()
			}
		}
		assert.Equal(t, "clock", found[len(found)-1].Check, "no result after the context ends")
		cancel()
	})
}

func TestShortTimeouts(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		flag, name := "--wait-timeout=9", "wait_timeout is 9 s"
		if shared.IsMariaDB() {
			flag, name = "--idle-transaction-timeout=5", "idle_transaction_timeout is 5 s"
		}
		s := shared.Start(t, flag, "--max-allowed-packet=64K")
		_, db := initialised(t, s)
		found := examine(t, db)
		timeouts := found.of("timeouts")
		require.Len(t, timeouts, 2, "%v", timeouts)
		says(t, timeouts[0], OK, "lock_wait_timeout", "")
		says(t, timeouts[1], Warning, name, "raise it")
		says(t, found.only(t, "packet"), Warning, "at most 64 KiB (max_allowed_packet)", "raise max_allowed_packet")
	})
}

func TestJudgeTimeouts(t *testing.T) {
	assert.Equal(t, []Result{ok("lock_wait_timeout 31536000 s, max_statement_time none")},
		judgeTimeouts(map[string]string{"lock_wait_timeout": "31536000", "max_statement_time": "0.000000", "wait_timeout": "?"}))
	results := judgeTimeouts(map[string]string{"idle_transaction_timeout": "0.5"})
	require.Len(t, results, 1)
	says(t, results[0], Warning, "idle_transaction_timeout is 0.5 s: a transaction that sends no statement for longer is lost", "raise it")
}

func TestJudgeClock(t *testing.T) {
	for _, test := range []struct {
		ahead, trip time.Duration
		level       Level
		text        string
	}{
		{0, time.Millisecond, OK, "differ by at most 500µs"},
		{-900 * time.Millisecond, time.Millisecond, OK, "differ by at most 900.5ms"},
		{3 * time.Second, time.Millisecond, Warning, "3s ahead of this machine's"},
		{-90 * time.Second, time.Millisecond, Warning, "1m30s behind this machine's"},
		{2 * time.Second, 3 * time.Second, OK, "differ by at most 3.5s"}, // the network alone may explain the difference
	} {
		r := judgeClock(test.ahead, test.trip)
		assert.Equal(t, test.level, r.Level, r.Text)
		assert.Contains(t, r.Text, test.text)
	}
}

// These checks get the capabilities of servers that the tests do not run.
func TestOtherServers(t *testing.T) {
	for _, test := range []struct {
		check func(context.Context, *exam) ([]Result, error)
		caps  server.Capabilities
		level Level
		text  string
	}{
		{version, server.Capabilities{Version: "5.6.51-log"}, Problem, "too old, mqnotify needs 5.7: an older one keeps one advisory lock"},
		{version, server.Capabilities{Version: "5.7.44"}, Warning, "not tested"},
		{version, server.Capabilities{Version: "8.0.11"}, OK, "MySQL 8.0.11"},
		{version, server.Capabilities{Version: "10.1.48-MariaDB", MariaDB: true}, Problem, "needs 10.3"},
		{version, server.Capabilities{Version: "10.5.1-MariaDB", MariaDB: true}, Warning, "not tested"},
		{version, server.Capabilities{Version: "8.0.11-TiDB-v7.5.0"}, Warning, "TiDB 8.0.11-TiDB-v7.5.0, not MySQL itself"},
		{version, server.Capabilities{Version: "8.0.30-vitess"}, Warning, "not MySQL itself"},
		{version, server.Capabilities{Version: "new"}, Warning, `unknown version "new"`},
		{cluster, server.Capabilities{GroupReplication: true, MultiPrimary: true}, Warning, "several primaries"},
		{cluster, server.Capabilities{GroupReplication: true}, OK, "one primary"},
		{gtid, server.Capabilities{GTID: true}, OK, "gtid_mode is on"},
	} {
		results, err := test.check(t.Context(), &exam{caps: &test.caps})
		require.NoError(t, err)
		require.Len(t, results, 1)
		says(t, results[0], test.level, test.text, "")
	}
}
