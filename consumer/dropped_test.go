package consumer

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A handler's transaction whose connection is dropped silently ends: the message is handled again over new connections, and Run can be
// stopped.
func TestDroppedDuringATransaction(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, proxy := s.Database(t), s.Proxy(t)
		db, setup := openConfig(t, proxy.Forgetful(config), "orders"), openConfig(t, config)
		insert(t, setup, "orders", "one")
		var attempts atomic.Int64
		dropped, again := make(chan struct{}), make(chan struct{})
		c := run(t, db, "orders", Options{Group: "g", From: "beginning", MaxAttempts: -1, Retry: fastRetries, Logger: quiet, lockIdle: 3 * time.Second},
			EachTx(func(context.Context, *sqlx.Tx, Message) error {
				if attempts.Add(1) == 1 {
					proxy.Freeze()
					close(dropped)
					return errHandler
				}
				close(again)
				return nil
			}))
		mysqltest.Await(t, dropped, "the first attempt")
		for _, id := range mysqltest.Sessions(t, s.Admin(t), config.DBName, "") { // or the server keeps the group's lock for 45 s
			mysqltest.KillSession(t, s.Admin(t), id)
		}
		mysqltest.Await(t, again, "a second attempt")
		require.NoError(t, c.end(t))
	})
}

// A consumer with a condition and without a group, which holds no lock that could be lost, continues over new connections.
func TestDroppedWithACondition(t *testing.T) {
	mysqltest.NotShort(t, "TestDroppedDuringATransaction")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, proxy := s.Database(t), s.Proxy(t)
		db, setup := openConfig(t, proxy.Forgetful(config), "orders"), openConfig(t, config)
		got := collected{}
		options := Options{From: "beginning", Where: "payload <> ''", Mode: modePoll, askLimit: 6 * time.Second, Logger: quiet}
		run(t, db, "orders", options, got.handler())
		insert(t, setup, "orders", "one")
		got.waitFor(t, "one")
		proxy.Freeze()
		insert(t, setup, "orders", "two")
		got.waitFor(t, "one", "two")
	})
}
