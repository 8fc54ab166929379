package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestConsumePrints(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		mysqltest.Exec(t, db, `INSERT INTO orders (created_at, headers, payload) VALUES
			('2026-01-31 08:00:00.123456', '{"kind": "a<b"}', 'one'), ('2026-02-01 00:00:00', NULL, X'FF00')`)
		created := mysqltest.Values[string](t, db, "SELECT DATE_FORMAT(CONVERT_TZ(created_at, @@time_zone, '+00:00'), '%Y-%m-%dT%H:%i:%s.%fZ') FROM orders ORDER BY id")
		all := func(args ...string) string {
			return succeed(t, config, append([]string{"consume", "orders", "--from", "beginning", "--stop-at-end"}, args...)...)
		}
		require.Equal(t, fmt.Sprintf(`{"id":1,"topic":"orders","created_at":"%s","headers":{"kind":"a<b"},"payload":"one"}
{"id":2,"topic":"orders","created_at":"%s","headers":{},"payload_base64":"/wA="}
`, created[0], created[1]), all())
		require.Equal(t, "one\n\xff\x00\n", all("--format", "payload"))
		require.Equal(t, "1 orders 2026 a<b one {\"kind\":\"a<b\"}\n2 orders 2026  \xff\x00 null\n",
			all("--format", "{{.ID}} {{.Topic}} {{.CreatedAt.Year}} {{.Headers.kind}} {{.Payload}} {{json .Headers}}"))
		require.Equal(t, "one\n", all("--format", "payload", "--where", "id < 2"))
		require.Equal(t, `{"id":1}`+"\n"+`{"id":2}`+"\n", all("--columns", "id"))
	})
}

// Any table is a topic, and its rows are messages.
func TestConsumeAnyTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, "CREATE TABLE `we``ird, table` (a VARCHAR(9) PRIMARY KEY, n BIGINT UNSIGNED NOT NULL UNIQUE, d DECIMAL(4,2))")
		mysqltest.Exec(t, db, "INSERT INTO `we``ird, table` VALUES ('x', 18446744073709551614, 1.50), ('y', 7, NULL)")
		args := []string{"consume", "we`ird, table", "--from", "beginning", "--stop-at-end"}
		require.Contains(t, fail(t, exitFailed, config, args...), "--id-column")
		args = append(args, "--id-column", "n")
		require.Contains(t, fail(t, exitFailed, config, args...), "is not AUTO_INCREMENT")
		args = append(args, "--any-key")
		require.Equal(t, `{"a":"y","n":7,"d":null}`+"\n"+`{"a":"x","n":18446744073709551614,"d":"1.50"}`+"\n",
			succeed(t, config, args...))
		require.Equal(t, "7 y\n18446744073709551614 x\n", succeed(t, config, append(args, "--format", "{{.Row.n}} {{.Row.a}}")...))
	})
}

// A group continues exactly after its last message, also when a limit ended the run.
func TestConsumeGroup(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		for n := 1; n <= 10; n++ {
			mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES (?)", fmt.Sprint(n))
		}
		group := []string{"consume", "orders", "--group", "g", "--from", "beginning", "--format", "payload"}
		r := mqnotify(t, config, "", "consume", "orders", "--group", "new", "--stop-at-end")
		require.Empty(t, r.out)
		require.Contains(t, r.err, `msg="the group begins" topic=orders group=new after=10`)
		require.NotContains(t, mqnotify(t, config, "", "consume", "orders", "--group", "new", "--stop-at-end").err, "begins")
		for _, want := range []string{"1 2 3", "4 5 6", "7 8 9"} {
			require.Equal(t, want, strings.Join(words(succeed(t, config, append(group, "--limit", "3")...)), " "))
		}
		require.Equal(t, "10\n", succeed(t, config, append(group, "--stop-at-end")...))
		require.Empty(t, succeed(t, config, append(group, "--stop-at-end")...))
		require.Equal(t, "9\n10\n", succeed(t, config, append(group, "--stop-at-end", "--reset", "--from", "9")...))
		mysqltest.Exec(t, db, "UPDATE orders SET created_at = NOW() - INTERVAL 1 DAY WHERE id < 8")
		require.Equal(t, "8\n9\n10\n", succeed(t, config, append(group, "--stop-at-end", "--reset", "--from", "1h")...))

		c := background(t, config, group...)
		mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('new')")
		c.out.contains(t, "new\n")
		require.Equal(t, exitDone, c.interrupt(t).code)
		require.Empty(t, succeed(t, config, append(group, "--stop-at-end")...), "the offset was stored at Ctrl-C")

		mysqltest.Exec(t, db, "TRUNCATE TABLE orders")
		require.Contains(t, fail(t, exitFailed, config, append(group, "--stop-at-end")...), "--reset")
	})
}

// A consumer whose table is truncated ends with an error that has the remedy.
func TestConsumeOfATruncatedTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		succeed(t, config, "produce", "orders", "one", "two")
		c := background(t, config, "consume", "orders", "--group", "g", "--from", "beginning")
		c.err.contains(t, "msg=waiting")
		succeed(t, config, "produce", "orders", "three") // a TRUNCATE before the consumer waits would be noticed minutes later
		require.Eventually(t, func() bool {
			return len(mysqltest.Values[string](t, db, "SELECT settled FROM mqnotify_offset WHERE settled = 3")) == 1
		}, patience, 25*time.Millisecond)
		mysqltest.Exec(t, db, "TRUNCATE TABLE orders")
		r := c.wait(t)
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.err, "--reset")
		require.Contains(t, fail(t, exitFailed, config, "consume", "orders", "--from", "2"), "--from is past its end")
	})
}

// Without a group a consumer begins with new messages and stores nothing.
func TestConsumeFromEnd(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, "CREATE TABLE plain (id INT AUTO_INCREMENT PRIMARY KEY)")
		mysqltest.Exec(t, db, "INSERT INTO plain VALUES ()")
		for _, table := range mysqltest.Values[string](t, db, "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME <> 'plain'") {
			mysqltest.Exec(t, db, "DROP TABLE "+table)
		}
		c := background(t, config, "consume", "plain", "--log-level", "debug", "--mode", "poll", "--limit", "1")
		c.err.contains(t, "--from beginning")
		c.err.contains(t, "reading")
		mysqltest.Exec(t, db, "INSERT INTO plain VALUES ()")
		r := c.wait(t)
		require.Equal(t, exitDone, r.code)
		require.Equal(t, `{"id":2}`+"\n", r.out)
	})
}

// A row that commits late is delivered late. In strict order the later rows wait for it.
func TestConsumeOrder(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		for _, test := range []struct{ flag, want string }{
			{"--strict=false", "first\nafter\nlate\n"},
			{"--strict", "first\nlate\nafter\n"},
		} {
			mysqltest.Exec(t, db, "TRUNCATE TABLE orders")
			c := background(t, config, "consume", "orders", "--from", "beginning", "--format", "payload", "--limit", "3", test.flag)
			mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('first')")
			c.out.contains(t, "first\n")
			late, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = late.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('late')")
			require.NoError(t, err)
			mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('after')")
			if test.flag == "--strict" {
				require.Never(t, func() bool { return strings.Contains(c.out.String(), "after") }, 300*time.Millisecond, time.Millisecond)
			} else {
				c.out.contains(t, "after\n")
			}
			require.NoError(t, late.Commit())
			require.Equal(t, test.want, c.wait(t).out)
		}
	})
}

// A message counts as handled only after it was written to stdout.
func TestConsumeToBrokenStdout(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('one'), ('two'), ('three')")
		for _, limit := range []string{"0", "2"} {
			var err text
			a := newApp(streams{in: strings.NewReader(""), out: brokenStream{}, err: &err, environ: environment(t, config)})
			code := a.run(t.Context(), []string{"consume", "orders", "--group", "g" + limit, "--from", "beginning", "--limit", limit, "--log-level", "warn"})
			require.Equal(t, exitFailed, code)
			require.Equal(t, "mqnotify: print: no space left\n", err.String())
			require.Empty(t, mysqltest.Values[string](t, db, "SELECT message_id FROM mqnotify_dead_letter"))
			require.Equal(t, "one\ntwo\nthree\n", succeed(t, config, "consume", "orders", "--group", "g"+limit, "--stop-at-end", "--format", "payload"))
		}
	})
}

type brokenStream struct{}

func (brokenStream) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// A template that does not fit a message ends the run, and loses no message.
func TestConsumeTemplateFails(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('one')")
		for _, template := range []string{"{{.Nosuch}}", "{{.Row.id}}", "{{index .Payload 99}}"} {
			message := fail(t, exitFailed, config, "consume", "orders", "--group", "g", "--from", "beginning", "--format", template, "--log-level", "warn")
			require.Equal(t, 1, strings.Count(message, "\n"), message)
			require.Contains(t, message, "template")
		}
		require.Equal(t, "one\n", succeed(t, config, "consume", "orders", "--group", "g", "--stop-at-end", "--format", "payload"))
	})
}

// The one-row flag wakes a consumer in both forms of the flag.
func TestConsumeByFlag(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		for _, form := range []string{"counter", "row"} {
			c := background(t, config, "consume", "orders", "--flag", form, "--format", "payload", "--limit", "2", "--log-level", "debug")
			c.err.contains(t, "msg=reading")
			for n := 1; n <= 2; n++ {
				succeed(t, config, "produce", "orders", fmt.Sprint(form, n), "--set-flag")
				c.out.contains(t, fmt.Sprintf("%s%d\n", form, n))
			}
			require.Equal(t, exitDone, c.wait(t).code)
		}
	})
}

// Every member of a shared group gets messages, and no message comes twice. status shows which member has which partitions.
func TestConsumeShares(t *testing.T) {
	mysqltest.NotShort(t, "consumer.TestShare")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		share := []string{"consume", "orders", "--group", "g", "--members-share", "--format", "{{.Headers.key}}"}
		one := background(t, config, append(share, "--partitions", "8", "--from", "beginning")...)
		require.Eventually(t, func() bool { // the first member makes the group
			return strings.Contains(mqnotify(t, config, "", "status", "orders").out, "1 share 8 partitions")
		}, patience, 25*time.Millisecond)
		two := background(t, config, share...)
		var lines []string
		require.Eventually(t, func() bool {
			r := mqnotify(t, config, "", "status", "orders")
			lines = strings.Split(r.out, "\n")
			return strings.Count(r.out, "4: ") == 2
		}, patience, 25*time.Millisecond)
		text := strings.Join(lines, "\n")
		require.Regexp(t, `\ng +2 share 8 partitions +0 `, text)
		require.Contains(t, text, "\nMEMBER OF g  ")
		require.Contains(t, text, "  PARTITIONS BY HEADER KEY  ")

		want := map[string]int{}
		for i := range 40 {
			key := strconv.Itoa(i)
			succeed(t, config, "produce", "orders", "x", "--header", "key="+key)
			want[key] = 1
		}
		require.Eventually(t, func() bool {
			return strings.Count(one.out.String(), "\n")+strings.Count(two.out.String(), "\n") == 40
		}, patience, 25*time.Millisecond)
		var view statusJSON
		require.Eventually(t, func() bool { // each member has read the other's messages as well
			view = statusJSON{}
			err := json.Unmarshal([]byte(mqnotify(t, config, "", "status", "orders", "--json").out), &view)
			return err == nil && !slices.ContainsFunc(view.Groups[0].Members, func(m memberJSON) bool { return m.Offset != 40 })
		}, patience, 25*time.Millisecond)
		got := map[string]int{}
		for _, c := range []*running{one, two} {
			r := c.interrupt(t)
			require.Equal(t, exitDone, r.code)
			require.NotEmpty(t, r.out)
			for key := range strings.FieldsSeq(r.out) {
				got[key]++
			}
		}
		require.Equal(t, want, got)

		view = statusJSON{}
		require.NoError(t, json.Unmarshal([]byte(succeed(t, config, "status", "orders", "--json")), &view))
		require.Equal(t, 8, view.Groups[0].Partitions)
		require.Equal(t, uint64(40), view.Groups[0].Members[0].Offset)

		message := fail(t, exitUsage, config, "consume", "orders", "--group", "g")
		require.Contains(t, message, "--members-share")
		message = fail(t, exitUsage, config, append(share, "--partitions", "9")...)
		require.Contains(t, message, "8 partitions, not 9")
		fail(t, exitUsage, config, "consume", "orders", "--members-share")
		fail(t, exitUsage, config, "consume", "orders", "--group", "g", "--partitions", "9")
	})
}

// consume says that it shows only new messages once it does so, and not before an error.
func TestConsumeReportsItsStart(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		const told = "waiting for new messages"
		require.NotContains(t, fail(t, exitFailed, config, "consume", "order"), told)
		r := background(t, config, "consume", "orders", "--limit", "1")
		r.err.contains(t, told)
		succeed(t, config, "produce", "orders", "one") // an earlier message would be missed
		require.Contains(t, r.wait(t).out, `"payload":"one"`)
	})
}
