package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

func TestProduceArguments(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		require.Empty(t, succeed(t, config, "produce", "orders", "one"))
		require.Contains(t, fail(t, exitUsage, config, "produce", "orders", "x", "--header", "Mqnotify-Retry=other/1"), "are reserved")
		require.Contains(t, fail(t, exitUsage, config, "produce", "orders", "x", "--header", "a=\xff"), "not UTF-8")
		out := succeed(t, config, "produce", "orders", "two", "", "--print-ids", "--header", "kind=a=b", "--header", "n=")
		require.Equal(t, mysqltest.Values[string](t, db, "SELECT id FROM orders WHERE id > 1 ORDER BY id"), words(out))
		require.Equal(t, []string{"one", "two", ""}, mysqltest.Values[string](t, db, "SELECT payload FROM orders ORDER BY id"))
		require.Equal(t, []string{"", "a=b", "a=b"},
			mysqltest.Values[string](t, db, "SELECT COALESCE(JSON_UNQUOTE(JSON_EXTRACT(headers, '$.kind')), '') FROM orders ORDER BY id"))
	})
}

// A message is a line without its newline, and otherwise unchanged.
func TestProduceLines(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		long := strings.Repeat("0123456789", 1<<16)
		lines := []string{"dos\r", "", " spaces ", "\x00\xff\xfe", `\'"`, long, "last"}
		for _, batch := range []string{"1", "3", "1000", "9000000000000000000"} {
			mysqltest.Exec(t, db, "DELETE FROM orders")
			r := mqnotify(t, config, strings.Join(lines, "\n"), "produce", "orders", "--batch", batch, "--print-ids")
			require.Equal(t, exitDone, r.code, r.err)
			require.Equal(t, mysqltest.Values[string](t, db, "SELECT id FROM orders ORDER BY id"), words(r.out))
			stored := mysqltest.Values[string](t, db, "SELECT payload FROM orders ORDER BY id")
			require.Len(t, stored, len(lines), "batches of %s", batch)
			for i := range lines {
				require.Equal(t, lines[i], stored[i], "line %d in batches of %s", i+1, batch)
			}
		}
	})
}

// A typed line is published at once. It does not wait for another line, or for the rest of the next one.
func TestProduceLineAtOnce(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, mode := range []string{modeNotify, modeHandshake} {
			t.Run(mode, func(t *testing.T) {
				config, db := database(t, s, "orders")
				in, typed := io.Pipe()
				p := start(t, environment(t, config), in, "produce", "orders", "--print-ids", "--mode", mode)
				for n, part := range []string{"one\n", "two\nth", "ree\nfour"} {
					_, err := io.WriteString(typed, part)
					require.NoError(t, err)
					p.out.contains(t, fmt.Sprintf("%d\n", n+1))
				}
				require.NoError(t, typed.Close())
				require.Equal(t, exitDone, p.wait(t).code)
				require.Equal(t, []string{"one", "two", "three", "four"}, mysqltest.Values[string](t, db, "SELECT payload FROM orders ORDER BY id"))
			})
		}
	})
}

// Ctrl-C ends produce while its stdin is still open.
func TestProduceInterrupted(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		in, typed := io.Pipe()
		p := start(t, environment(t, config), in, "produce", "orders", "--print-ids")
		_, err := io.WriteString(typed, "one\n")
		require.NoError(t, err)
		p.out.contains(t, "1\n")
		r := p.interrupt(t)
		require.NoError(t, typed.Close())
		require.Equal(t, exitDone, r.code)
		require.Contains(t, r.err, "published=1")
		require.Equal(t, []string{"one"}, mysqltest.Values[string](t, db, "SELECT payload FROM orders"))
	})
}

// A batch that could not be stored before its patience ended, or whose commit is unknown, is a failure, although Ctrl-C is none.
func TestFeedInterruptedInHand(t *testing.T) {
	mysqltest.Once(t)
	ctx, stop := context.WithCancel(t.Context())
	a := newApp(streams{err: io.Discard})
	err := a.feed(ctx, []string{"one", "two"}, 1, feedWords{"a message", "published", "messages published"},
		func(context.Context, [][]byte) (int, error) {
			stop()
			return 0, fmt.Errorf("%w: %w", notify.ErrUnknown, context.Cause(ctx))
		})
	require.ErrorIs(t, err, notify.ErrUnknown)
	err = a.feed(ctx, []string{"one"}, 1, feedWords{}, nil)
	require.NoError(t, err, "no batch was in hand")
}

// produce waits for a server that has no connection left, once it has published.
func TestProduceToABusyServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		limited := s.User(t, config, "SELECT, INSERT ON "+config.DBName+".*")
		in, typed := io.Pipe()
		p := start(t, environment(t, limited), in, "produce", "orders", "--batch", "1", "--print-ids")
		write := func(line string) {
			_, err := io.WriteString(typed, line+"\n")
			require.NoError(t, err)
		}
		stored := func() []string { return mysqltest.Values[string](t, db, "SELECT payload FROM orders ORDER BY id") }
		write("one")
		p.out.contains(t, "1\n") // and it has the answer
		account := "ALTER USER '" + limited.User + "'@'%' WITH MAX_USER_CONNECTIONS "
		mysqltest.Exec(t, db, account+"1")
		other, err := notify.OpenConfig(limited)
		require.NoError(t, err)
		var conn *sqlx.Conn
		require.Eventually(t, func() bool { // produce may connect once more, to wake the listeners of "one"
			for _, id := range mysqltest.Values[uint64](t, db, "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '"+limited.User+"'") {
				mysqltest.KillSession(t, db, id)
			}
			conn, err = other.Pool().Connx(t.Context())
			return err == nil
		}, patience, 25*time.Millisecond)
		write("two")
		p.err.contains(t, "away or busy")
		require.NoError(t, conn.Close())
		require.NoError(t, other.Close())
		mysqltest.Exec(t, db, account+"0")
		require.NoError(t, typed.Close())
		require.Equal(t, exitDone, p.wait(t).code)
		require.Equal(t, []string{"one", "two"}, stored())
	})
}

// Messages that were committed before a failure stay, and the error has their number.
func TestProduceFailsInTheMiddle(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, "CREATE TABLE short (id INT AUTO_INCREMENT PRIMARY KEY, headers JSON, payload VARBINARY(3) NOT NULL)")
		r := mqnotify(t, config, "one\ntwo\nthree\nfour\n", "produce", "short", "--batch", "1", "--print-ids")
		require.Equal(t, exitFailed, r.code)
		require.Equal(t, "1\n2\n", r.out)
		require.Contains(t, r.err, "payload")
		require.Contains(t, r.err, "(messages published before that: 2)")
		require.Equal(t, []string{"one", "two"}, mysqltest.Values[string](t, db, "SELECT payload FROM short ORDER BY id"))

		// A batch is published completely or not at all.
		r = mqnotify(t, config, "", "produce", "short", "a", "b", "long")
		require.Equal(t, exitFailed, r.code)
		require.NotContains(t, r.err, "before that")
		require.Len(t, mysqltest.Values[string](t, db, "SELECT payload FROM short"), 2)
	})
}

func TestProduceFails(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		mysqltest.Exec(t, db, "CREATE TABLE other (id INT PRIMARY KEY, name VARCHAR(10) NOT NULL)")
		reader := s.User(t, config, "SELECT ON "+config.DBName+".*")
		for mode := range map[string]bool{modeNotify: true, modeHandshake: true} {
			require.Contains(t, fail(t, exitFailed, config, "produce", "nosuch", "x", "--mode", mode), "mqnotify init")
			require.Contains(t, fail(t, exitFailed, config, "produce", "other", "x", "--mode", mode), "not a message table")
			require.Contains(t, fail(t, exitFailed, reader, "produce", "orders", "x", "--mode", mode), "mqnotify grants")
		}
		require.Empty(t, mysqltest.Values[string](t, db, "SELECT id FROM orders"))
	})
}

// Producer and consumer alternate: the release by the consumer wakes the producer.
func TestHandshake(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		c := background(t, config, "consume", "orders", "--mode", modeHandshake, "--from", "beginning", "--format", "payload", "--limit", "5")
		r := mqnotify(t, config, "a\nb\nc\nd\ne\n", "produce", "orders", "--mode", modeHandshake, "--batch", "1")
		require.Equal(t, exitDone, r.code, r.err)
		require.Equal(t, result{exitDone, "a\nb\nc\nd\ne\n", ""}, c.wait(t))
	})
}

func TestLinesCloses(t *testing.T) {
	broken := errors.New("broken disk")
	l := readLines(t.Context(), io.MultiReader(strings.NewReader("one\ntwo\nthr"), iotest.ErrReader(broken)), 10)
	var got []string
	for {
		batch, err := l.next(t.Context(), 10)
		for _, line := range batch {
			got = append(got, string(line))
		}
		if len(batch) == 0 {
			require.ErrorIs(t, err, broken)
			require.ErrorContains(t, err, "read line 3")
			break
		}
	}
	require.Equal(t, []string{"one", "two"}, got, "an incomplete line is no message")
}

// The lines in memory are bounded, at any speed and length of lines: by the read-ahead, one line that waits for room, and the
// buffer of the reader.
func TestLinesAreReadAheadWithinBounds(t *testing.T) {
	t.Parallel()
	var read atomic.Int64
	line := strings.Repeat("x", readAhead) + "\n"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := readLines(ctx, io.TeeReader(strings.NewReader(strings.Repeat(line, 6)), countTo{&read}), 1000)
	batch, err := l.next(ctx, 1000)
	require.NoError(t, err)
	require.Len(t, batch, 1)
	require.Len(t, batch[0], readAhead)
	most := int64(3*len(line) + 64<<10)
	require.Eventually(t, func() bool { return read.Load() >= int64(3*len(line)) }, patience, 25*time.Millisecond)
	require.Never(t, func() bool { return read.Load() > most }, 100*time.Millisecond, time.Millisecond)
	cancel()
	require.Eventually(t, func() bool {
		for {
			if _, open := <-l.ready; !open {
				return true
			}
		}
	}, patience, 25*time.Millisecond)
}

type countTo struct{ n *atomic.Int64 }

func (c countTo) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
