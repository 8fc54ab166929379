package consumer

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// If several servers take writes, each has advisory locks of its own. Of two members of a group on two servers, one is
// active, and the other takes over when the first dies with its server.
func TestGroupOnTwoServers(t *testing.T) {
	mysqltest.NotShort(t, "TestGroupHandsOver")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		start := s.Primaries
		if s.IsMariaDB() {
			start = s.Galera
		}
		nodes := start(t, 3) // two are no majority when one is killed
		config := nodes[0].Database(t)
		here := openConfig(t, config, "orders")
		there := config.Clone()
		there.Addr = nodes[1].Addr()
		other := attach(t, there)
		eventually(t, func() bool { _, err := other.Pool().Exec("DO (SELECT COUNT(*) FROM orders)"); return err == nil }, "the table does not come")

		options := Options{Group: "g", From: "beginning", Grace: 30 * time.Second, lockIdle: 15 * time.Second}
		var first, second collected
		options.Member = "first"
		one := run(t, here, "orders", options, first.handler())
		insert(t, here, "orders", "begin")
		first.waitFor(t, "begin")
		options.Member = "second"
		two := run(t, other, "orders", options, second.handler())
		for i := range 20 {
			insert(t, here, "orders", "here "+strconv.Itoa(i))
			insert(t, other, "orders", "there "+strconv.Itoa(i))
		}
		eventually(t, func() bool { return len(first.ids()) == 41 }, "%d", len(first.ids()))
		assert.Empty(t, second.ids(), "two members are active")
		status, err := statusBy(t, other, "orders", "")
		require.NoError(t, err)
		require.Len(t, status.Groups, 1)
		assert.True(t, status.Groups[0].Leased)
		assert.Equal(t, "first", status.Groups[0].Member)

		shared, err := New(other, "orders", Options{Group: "s", MembersShare: true})
		require.NoError(t, err)
		require.ErrorIs(t, shared.Run(t.Context(), second.handler()), notify.ErrOptions)

		nodes[0].Kill()
		retries := 0
		eventually(t, func() bool { // while the group of servers changes, writes fail
			_, err := other.Pool().Exec("INSERT INTO orders (payload) VALUES ('after')")
			retries++
			return err == nil
		}, "no write after %d", retries)
		eventually(t, func() bool {
			got := second.payloads()
			return len(got) > 0 && got[len(got)-1] == "after"
		}, "the other member does not take over: %v", second.payloads())
		require.NoError(t, two.end(t))
		one.stop()
		<-one.done
	})
}

// A member that stood by is connected to a server that has just become read-only: it waits until that server takes writes.
func TestStandbyWaitsForWrites(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t)
		for _, sharing := range []bool{false, true} {
			standbyWaitsForWrites(t, s, Options{Group: "g", From: "beginning", MembersShare: sharing, Partitions: map[bool]int{true: 1}[sharing]})
		}
	})
}

func standbyWaitsForWrites(t *testing.T, s *mysqltest.Server, options Options) {
	t.Helper()
	config := s.Database(t)
	db := openConfig(t, config, "orders")
	account := s.User(t, config, "ALL ON "+config.DBName+".*")
	var first, second collected
	active := run(t, attach(t, account), "orders", options, first.handler())
	insert(t, db, "orders", "one")
	first.waitFor(t, "one")
	var said mysqltest.Text
	options.Logger = slog.New(slog.NewTextHandler(&said, nil))
	standby := run(t, attach(t, account), "orders", options, second.handler())
	says := func(text string) func() bool { return func() bool { return strings.Contains(said.String(), text) } }
	eventually(t, says("standing by"), "it does not stand by: %v", &said)

	admin := s.Admin(t)
	_, err := admin.ExecContext(context.Background(), "SET GLOBAL read_only = ON")
	require.NoError(t, err)
	_ = active.end(t) // it may be unable to store its offset
	eventually(t, says(notify.ErrReadOnly.Error()), "it does not try: %v", &said)
	select {
	case <-standby.done:
		t.Fatalf("it ends: %v", standby.err)
	default:
	}
	_, err = admin.ExecContext(context.Background(), "SET GLOBAL read_only = OFF")
	require.NoError(t, err)
	insert(t, db, "orders", "two")
	eventually(t, func() bool { return slices.Contains(second.payloads(), "two") }, "%v", &said) // "one" may come again
	require.NoError(t, standby.end(t))
}
