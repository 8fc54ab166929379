package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// statusLines returns the lines of the output of status.
func statusLines(tb testing.TB, config *mysql.Config, args ...string) []string {
	tb.Helper()
	return strings.Split(strings.TrimSuffix(succeed(tb, config, append([]string{"status"}, args...)...), "\n"), "\n")
}

// fields returns a line's columns.
func fields(line string) []string {
	var all []string
	for field := range strings.SplitSeq(line, "  ") {
		if field = strings.TrimSpace(field); field != "" {
			all = append(all, field)
		}
	}
	return all
}

func TestStatusWithoutListeners(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		const nobody = "gate:       no session waits for the trigger"
		none := "trigger:    none that works, as far as this account may see: listeners poll (mqnotify wake install orders)"
		require.Equal(t, []string{"topic:      orders in " + config.DBName + ", the largest id is 0", none, nobody, "groups:     none"},
			statusLines(t, config, "orders"))

		require.Regexp(t, "no table `order` in .* \\(did you mean `orders`\\?\\)", fail(t, exitFailed, config, "status", "order"))

		mysqltest.Exec(t, db, "CREATE VIEW v AS SELECT 1")
		require.Regexp(t, "^groups:     none: .* is a view", statusLines(t, config, "v")[3])
		mysqltest.Exec(t, db, "DROP TABLE mqnotify_offset")
		require.Equal(t, "groups:     none: the tables of mqnotify are not in this database: make them with `mqnotify init`",
			statusLines(t, config, "orders")[3])
	})
}

func TestStatus(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		succeed(t, config, "produce", "orders", "a", "b", "c")
		c := background(t, config, "consume", "orders", "--group", "active", "--from", "beginning")
		c.out.contains(t, `"c"`)
		succeed(t, config, "consume", "orders", "--group", "bad", "--from", "beginning", "--attempts", "1", "--stop-at-end", "--", "false")
		succeed(t, config, "consume", "orders", "--group", "some", "--from", "beginning", "--limit", "1")
		mysqltest.Exec(t, db, "UPDATE mqnotify_offset SET updated_at = NOW(6) - INTERVAL 50 HOUR WHERE group_name = 'some'")
		succeed(t, config, "wake", "install", "orders")
		tail := background(t, config, "tail", "-f", "orders")
		tail.err.contains(t, "mode=trigger")

		var lines []string
		require.Eventually(t, func() bool { // the two listeners wait at the gate, and the server has noticed that the other members have left
			lines = strings.Split(mqnotify(t, config, "", "status", "orders").out, "\n")
			return len(lines) > 7 && strings.HasSuffix(lines[2], "followed by 1") && strings.HasPrefix(lines[5], "active") &&
				fields(lines[5])[2] == "3" && strings.Contains(lines[6], "none;") && strings.Contains(lines[7], "none;")
		}, patience, 25*time.Millisecond)
		assert.Equal(t, "topic:      orders in "+config.DBName+", the largest id is 3", lines[0])
		assert.Equal(t, "trigger:    wakes the listeners at every insert", lines[1])
		assert.Regexp(t, `^gate:       session \d+ leads the gate, followed by 1$`, lines[2])
		assert.Empty(t, lines[3])
		assert.Equal(t, []string{"GROUP", "MEMBER", "OFFSET", "DONE ABOVE", "GAPS", "LAG", "STORED", "DEAD LETTERS"}, fields(lines[4]))
		assert.Regexp(t, `^active\|[^|]+:\d+, session \d+\|3\|0\|0\|0\|\d+(m\d+)?m?s ago\|0$`, strings.Join(fields(lines[5]), "|"))
		assert.Regexp(t, `^bad\|none; the last was [^|]+:\d+\|3\|0\|0\|0\|\d+(m\d+)?m?s ago\|3$`, strings.Join(fields(lines[6]), "|"))
		assert.Regexp(t, `^some\|none; the last was [^|]+:\d+\|1\|0\|0\|2\|2d ago\|0$`, strings.Join(fields(lines[7]), "|"))
		assert.Equal(t, []string{""}, lines[8:])

		var view statusJSON
		require.Eventually(t, func() bool { // a session may be away from the gate for a moment
			out := mqnotify(t, config, "", "status", "orders", "--json").out
			view = statusJSON{}
			return json.Unmarshal([]byte(out), &view) == nil && strings.Count(out, "\n") == 1 && view.Followers == 1
		}, patience, 25*time.Millisecond)
		assert.Contains(t, lines[2], fmt.Sprintf("session %d ", view.Leader))
		assert.Equal(t, []string{"insert"}, view.Wakes)
		assert.Contains(t, lines[5], fmt.Sprintf("session %d ", view.Groups[0].Session))
		assert.GreaterOrEqual(t, view.Groups[2].StoredAgo, 50*time.Hour.Seconds())
		view.Groups[2].StoredAgo, view.Groups[2].Member = 0, ""
		assert.Equal(t, groupJSON{Group: "some", Offset: 1, Lag: 2, IDsBehind: 2}, view.Groups[2])
		assert.True(t, view.Groups[0].Active)
		assert.Equal(t, 3, view.Groups[1].DeadLetters)
	})
}

// status shows the trigger to accounts that may not see triggers, and names a trigger that does not work.
func TestStatusOfTriggers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		succeed(t, config, "init", "orders")
		on := " ON " + config.DBName + "."
		few := s.User(t, config, "SELECT"+on+"orders", "SELECT"+on+"mqnotify_offset", "SELECT"+on+"mqnotify_dead_letter")
		require.Contains(t, succeed(t, few, "status", "orders"), "trigger:    none that works, as far as this account may see")
		few = s.User(t, config, "SELECT"+on+"orders", "SELECT"+on+"mqnotify_offset", "SELECT"+on+"mqnotify_dead_letter",
			"EXECUTE ON PROCEDURE "+config.DBName+".mqnotify_wake_tables")
		require.Contains(t, succeed(t, few, "status", "orders"), "trigger:    wakes the listeners at every insert\n")

		mysqltest.Exec(t, db, "DROP PROCEDURE mqnotify_wake")
		require.Regexp(t, `trigger:    mqnotify_wake_insert_orders does not work: .* \(mqnotify wake install orders --on insert\)\ntrigger:    none that works`,
			succeed(t, config, "status", "orders"))
	})
}

// status names the causes that stop an offset, with their remedies.
func TestStatusFindings(t *testing.T) {
	mysqltest.NotShort(t, "TestStatus")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		succeed(t, config, "produce", "orders", "a", "b")
		succeed(t, config, "consume", "orders", "--group", "g", "--from", "beginning", "--limit", "2")
		mysqltest.Exec(t, db, "TRUNCATE TABLE orders")
		require.Contains(t, succeed(t, config, "status", "orders"), "\nproblem  orders: offset: the table's ids end below the offset of group g: "+
			"was it truncated? A consumer of the group fails\n         -> let the group begin again: mqnotify consume orders --group g --reset --from beginning\n")

		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		var id uint64
		require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
		_, err = tx.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('x')")
		require.NoError(t, err)
		var out text
		a := newApp(streams{in: strings.NewReader(""), out: &out, err: &out, environ: environment(t, config)})
		require.Eventually(t, func() bool {
			err := a.status(t.Context(), statusOptions{old: time.Second}, "orders")
			return err == nil && strings.Contains(out.String(), fmt.Sprintf("\nwarning  orders: transactions: a transaction of session %d (root@", id))
		}, patience, 100*time.Millisecond)
		require.Contains(t, out.String(), fmt.Sprintf("KILL %d", id))
	})
}

// Without the privileges for groups, status shows the gate and then fails.
func TestStatusDenied(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		few := s.User(t, config, "SELECT ON "+config.DBName+".orders")
		r := mqnotify(t, few, "", "status", "orders")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.out, "gate:       no session waits for the trigger\ngroups:     unknown\n")
		require.Contains(t, r.err, "`mqnotify grants` shows what the account needs")
		r = mqnotify(t, few, "", "status", "orders", "--json")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.out, `"table":false`)

		require.Contains(t, fail(t, exitFailed, config, "status", "orders", "--id-column", "nonsense"), "no column `nonsense`")
		few.Passwd = "t0p-secret"
		r = mqnotify(t, few, "", "status", "orders")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.err, "check user and password")
		require.NotContains(t, r.out+r.err, "t0p-secret")
	})
}

// The text for people has no control characters.
func TestStatusText(t *testing.T) {
	s := topicStatus{name: "a\nb", database: "shop", groups: &consumer.Status{Groups: []consumer.GroupStatus{
		{Group: "g\n1", Member: "m", Waiting: 10000, MoreWaiting: true, Behind: 23456, Moved: 90 * time.Minute},
	}}}
	s.gate.Leader, s.gate.Followers = 7, 2
	text, err := s.text()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(text, "topic:      a\uFFFDb in shop, the largest id is 0\n"), text)
	require.Contains(t, text, "\ngate:       session 7 leads the gate, followed by 2\n\nGROUP")
	require.Contains(t, text, "\ng\uFFFD1    none; the last was m  0       0           0     10000+ of 23456 ids  1h30m ago  0\n")
}

// A group with a lease, as on Galera, has no session and is active.
func TestStatusJSONOfALease(t *testing.T) {
	s := topicStatus{groups: &consumer.Status{Groups: []consumer.GroupStatus{{Group: "leased", Leased: true}, {Group: "none"}}}}
	text, err := s.json()
	require.NoError(t, err)
	require.Contains(t, text, `"group":"leased","active":true`)
	require.Contains(t, text, `"group":"none","active":false`)
}

func TestRoughly(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1234 * time.Microsecond: "1ms", 1400 * time.Millisecond: "1s", 75 * time.Second: "1m15s",
		3 * time.Hour: "3h0m", 47*time.Hour + 59*time.Minute: "47h59m", 49 * time.Hour: "2d", 240 * time.Hour: "10d",
	} {
		require.Equal(t, want, roughly(d))
	}
}
