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
	"github.com/mqnotify/mqnotify/notify"
)

func openGate(tb testing.TB, config *mysql.Config, topic string) *notify.Gate {
	tb.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	gate := notify.NewGate(db, topic, notify.GateOptions{})
	tb.Cleanup(func() {
		require.NoError(tb, gate.Close())
		require.NoError(tb, db.Close())
	})
	return gate
}

// statusLines are the lines of a status, the first ones by what they are about.
func statusLines(tb testing.TB, config *mysql.Config, args ...string) []string {
	tb.Helper()
	return strings.Split(strings.TrimSuffix(succeed(tb, config, append([]string{"status"}, args...)...), "\n"), "\n")
}

// fields are a line's columns.
func fields(line string) []string {
	var all []string
	for field := range strings.SplitSeq(line, "  ") {
		if field = strings.TrimSpace(field); field != "" {
			all = append(all, field)
		}
	}
	return all
}

func TestStatusOfNobody(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		const nobody = "keeper:     none; nobody listens"
		require.Equal(t, []string{"topic:      orders in " + config.DBName + ", the largest id is 0", nobody, "groups:     none"},
			statusLines(t, config, "orders"))

		lines := statusLines(t, config, "order")
		require.Equal(t, []string{"topic:      order in " + config.DBName, nobody}, lines[:2])
		require.Regexp(t, "^table:      no table `order` in .* \\(did you mean `orders`\\?\\)", lines[2])
		require.Len(t, lines, 3)

		mysqltest.Exec(t, db, "CREATE VIEW v AS SELECT 1")
		require.Regexp(t, "^groups:     none: .* is a view", statusLines(t, config, "v")[2])
		mysqltest.Exec(t, db, "DROP TABLE mqnotify_offset")
		require.Equal(t, "groups:     none: the tables of mqnotify are not in this database: make them with `mqnotify init`",
			statusLines(t, config, "orders")[2])
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
		producer, other := openGate(t, config, "orders"), openGate(t, config, "orders")
		require.NoError(t, producer.Join(t.Context()))
		require.NoError(t, other.Join(t.Context()))

		const who = `session \d+ \(root@localhost[:\d]*\)`
		var lines []string
		require.Eventually(t, func() bool { // the consumer waits at the gate, and the server knows that the other two left
			lines = strings.Split(mqnotify(t, config, "", "status", "orders").out, "\n")
			return len(lines) > 9 && lines[3] == "listeners:  1" && strings.HasPrefix(lines[7], "active") && fields(lines[7])[2] == "3" &&
				strings.Contains(lines[8], "none;") && strings.Contains(lines[9], "none;")
		}, patience, 10*time.Millisecond)
		assert.Equal(t, "topic:      orders in "+config.DBName+", the largest id is 3", lines[0])
		assert.Regexp(t, `^keeper:     `+who+`, a producer, at phase \d+$`, lines[1])
		assert.Regexp(t, `^bells:      `+who+`, a producer, in slot \d+$`, lines[2])
		assert.Regexp(t, `^            `+who+`, waiting \d+s$`, lines[4])
		assert.Empty(t, lines[5])
		assert.Equal(t, []string{"GROUP", "MEMBER", "OFFSET", "DONE ABOVE", "GAPS", "LAG", "STORED", "DEAD LETTERS"}, fields(lines[6]))
		assert.Regexp(t, `^active\|[^|]+:\d+, session \d+\|3\|0\|0\|0\|\d+m?s ago\|0$`, strings.Join(fields(lines[7]), "|"))
		assert.Regexp(t, `^bad\|none; the last was [^|]+:\d+\|3\|0\|0\|0\|\d+m?s ago\|3$`, strings.Join(fields(lines[8]), "|"))
		assert.Regexp(t, `^some\|none; the last was [^|]+:\d+\|1\|0\|0\|2\|2d ago\|0$`, strings.Join(fields(lines[9]), "|"))
		assert.Equal(t, []string{""}, lines[10:])

		var view statusJSON
		require.Eventually(t, func() bool { // it waits again, if it has just looked after its session
			out := mqnotify(t, config, "", "status", "orders", "--json").out
			view = statusJSON{}
			return json.Unmarshal([]byte(out), &view) == nil && strings.Count(out, "\n") == 1 && len(view.Listeners) == 1
		}, patience, 10*time.Millisecond)
		assert.Contains(t, lines[1], fmt.Sprintf("session %d (", view.Keeper.Session))
		assert.True(t, view.Keeper.Producer)
		assert.NotNil(t, view.Keeper.Phase)
		assert.Equal(t, view.Keeper.Session, view.Claimant.Session)
		assert.Contains(t, lines[2], fmt.Sprintf("session %d (root", view.Bells[0].Session))
		assert.Contains(t, lines[4], fmt.Sprintf("session %d (root", view.Listeners[0].Session))
		assert.True(t, view.OthersVisible)
		assert.Contains(t, lines[7], fmt.Sprintf("session %d ", view.Groups[0].Session))
		assert.GreaterOrEqual(t, view.Groups[2].StoredAgo, 50*time.Hour.Seconds())
		view.Groups[2].StoredAgo, view.Groups[2].Member = 0, ""
		assert.Equal(t, groupJSON{Group: "some", Offset: 1, Lag: 2, IDsBehind: 2}, view.Groups[2])
		assert.True(t, view.Groups[0].Active)
		assert.Equal(t, 3, view.Groups[1].DeadLetters)
	})
}

// A topic of LISTEN and NOTIFY alone needs no table. Its keeper may be a listener.
func TestStatusWithoutTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		_, err := openGate(t, config, "news").Head(t.Context())
		require.NoError(t, err)
		lines := statusLines(t, config, "news")
		require.Regexp(t, `^keeper:     session \d+ \(root@localhost[:\d]*\), a listener, at phase \d+$`, lines[1])
		require.Equal(t, "listeners:  none outside the keeper's process", lines[2])
		require.Regexp(t, "^table:      no table `news`", lines[3])

		// An account without privileges sees that somebody keeps the gate.
		few := s.User(t, config, "SELECT ON "+config.DBName+".mqnotify_flag")
		lines = statusLines(t, few, "news")
		require.Regexp(t, `^keeper:     session \d+, a listener, at phase \d+$`, lines[1])
		require.Equal(t, "listeners:  none of this account; those of others show with the privilege PROCESS", lines[2])

		var view statusJSON
		require.NoError(t, json.Unmarshal([]byte(succeed(t, few, "status", "news", "--json")), &view))
		require.False(t, view.OthersVisible)
		require.Contains(t, view.Note, "no table `news`")
	})
}

// What keeps offsets from moving on is named, with the remedy.
func TestStatusFindings(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		succeed(t, config, "produce", "orders", "a", "b")
		succeed(t, config, "consume", "orders", "--group", "g", "--from", "beginning", "--limit", "2")
		mysqltest.Exec(t, db, "TRUNCATE TABLE orders")
		require.Contains(t, succeed(t, config, "status", "orders"), "\nproblem  orders: offset: the table's ids end below the offset of group g: "+
			"was it truncated? A consumer of the group fails\n         -> start it anew: mqnotify consume orders --group g --reset\n")

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

// Without the privileges for the groups the gate is shown, and then the status fails.
func TestStatusDenied(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		few := s.User(t, config, "SELECT ON "+config.DBName+".orders")
		r := mqnotify(t, few, "", "status", "orders")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.out, "keeper:     none; nobody listens\ngroups:     unknown\n")
		require.Contains(t, r.err, "`mqnotify grants` names")
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

// A person is shown a few of many, and no control character.
func TestStatusText(t *testing.T) {
	s := topicStatus{name: "a\nb", database: "shop", groups: &consumer.TopicStatus{Groups: []consumer.GroupStatus{
		{Group: "g\n1", Member: "m", Waiting: consumer.Count{N: 10000, More: true}, Behind: 23456, Moved: 90 * time.Minute},
	}}}
	s.gate.Keeper.ID, s.gate.Claimant.ID, s.gate.Phase = 1, 2, -1
	for range mostListeners + 3 {
		s.gate.Listeners = append(s.gate.Listeners, notify.Participant{ID: 7, User: "u", Host: "h", For: 5 * time.Second})
	}
	text, err := s.text()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(text, "topic:      a\uFFFDb in shop, the largest id is 0\n"+
		"keeper:     session 1, a listener\n"+
		"            session 2, a producer, is about to keep it\n"+
		"listeners:  23\n"), text)
	require.Equal(t, mostListeners, strings.Count(text, "            session 7 (u@h), waiting 5s\n"))
	require.Contains(t, text, "            and 3 more\n\nGROUP")
	require.Contains(t, text, "\ng\uFFFD1    none; the last was m  0       0           0     10000+ of 23456 ids  1h30m ago  0\n")
}

func TestRoughly(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1234 * time.Microsecond: "1ms", 1400 * time.Millisecond: "1s", 75 * time.Second: "1m15s",
		3 * time.Hour: "3h0m", 47*time.Hour + 59*time.Minute: "47h59m", 49 * time.Hour: "2d", 240 * time.Hour: "10d",
	} {
		require.Equal(t, want, roughly(d))
	}
}
