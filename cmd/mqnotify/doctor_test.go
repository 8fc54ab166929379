package main

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/doctor"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestDoctor(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		succeed(t, config, "init")
		out := succeed(t, config, "doctor", "orders")
		require.Contains(t, out, "ok       orders: table: `"+config.DBName+"`.`orders` is a message table\n")
		require.Regexp(t, `\n\d+ ok, 0 warnings, 0 problems\n$`, out)
		require.Contains(t, succeed(t, config, "doctor"), "to check tables too: mqnotify doctor TOPIC...")

		// doctor exits with 0 after a warning, and with 1 after a problem.
		mysqltest.Exec(t, db, "CREATE TABLE `a\nproblem` (id INT AUTO_INCREMENT PRIMARY KEY) ENGINE=MyISAM")
		out = succeed(t, config, "doctor", "a\nproblem")
		require.Contains(t, out, "warning  a\uFFFDproblem: engine: MyISAM has no transactions")
		require.Contains(t, out, "\n         -> ALTER TABLE `a\uFFFDproblem` ENGINE=InnoDB\n")
		require.Contains(t, out, ", 1 warning, 0 problems")
		require.Equal(t, "mqnotify: doctor found 1 problem\n", fail(t, exitFailed, config, "doctor", "order", "orders"))

		require.Contains(t, fail(t, exitUsage, config, "doctor", "orders "), "ends in a space")
		require.Contains(t, fail(t, exitUsage, config, "doctor", "--timeout", "0s"), "more than 0")
	})
}

func TestDoctorJSON(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		r := mqnotify(t, config, "", "doctor", "--json", "orders", "a<b")
		require.Equal(t, exitFailed, r.code)
		var last doctor.Result
		for line := range strings.Lines(r.out) {
			last = doctor.Result{}
			require.NoError(t, json.Unmarshal([]byte(line), &last), line)
			require.NotEmpty(t, last.Text)
		}
		require.Equal(t, doctor.Problem, last.Level)
		require.Equal(t, "table", last.Check)
		require.Equal(t, "a<b", last.Topic)
		require.Contains(t, last.Remedy, "mqnotify init")
		require.Contains(t, r.out, `"topic":"a<b"`, "the topic is unchanged")
	})
}

func TestDoctorShowsNoPassword(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		wrong := s.User(t, config, "SELECT ON "+config.DBName+".*")
		wrong.Passwd = "t0p-secret"
		for _, args := range [][]string{{"doctor", "orders"}, {"doctor", "--json"}, {"doctor", "--log-level", "debug"}} {
			r := mqnotify(t, wrong, "", args...)
			require.Equal(t, exitFailed, r.code)
			require.Contains(t, r.out, "check user and password")
			require.NotContains(t, r.out+r.err, "t0p-secret")
		}
	})
}

// LOCALHOST in capitals is this machine, but doctor takes it for another host and warns of the unencrypted connection.
func TestDoctorReportsUnverified(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		account := s.User(t, config, "ALL ON "+config.DBName+".*")
		require.NotContains(t, succeed(t, account, "doctor"), "another server")
		account.Addr = strings.Replace(account.Addr, "127.0.0.1", "LOCALHOST", 1)
		require.Contains(t, succeed(t, account, "doctor"), "\nwarning  connection: another server could take this one's place and get the password: the connection is not encrypted\n")
	})
}

// An interrupt ends a doctor whose server does not answer.
func TestDoctorIsInterrupted(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	config := mysql.NewConfig()
	config.Net, config.Addr, config.DBName = "tcp", silent.Addr().String(), "shop"
	r := background(t, config, "doctor", "--timeout", "1h")
	conn, err := silent.Accept()
	require.NoError(t, err)
	defer conn.Close()
	ended := r.interrupt(t)
	require.Equal(t, exitFailed, ended.code)
	require.Equal(t, "mqnotify: doctor was interrupted before the last check: context canceled\n", ended.err)
	require.Empty(t, ended.out)
}
