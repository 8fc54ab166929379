package gocloud_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"gocloud.dev/pubsub"

	"github.com/mqnotify/mqnotify/adapters/gocloud"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// The examples use ctx and db. notify.Open made db, and init made its tables.
var (
	ctx = context.Background()
	db  *notify.DB
)

// TestExamples runs the examples in order on each server.
func TestExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		server := url.URL{Scheme: "mysql", User: url.UserPassword(config.User, config.Passwd), Host: config.Addr, Path: config.DBName}
		t.Setenv("MQNOTIFY_DSN", server.String())
		var err error
		db, err = notify.OpenConfig(config)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		require.NoError(t, schema.Init(t.Context(), db.Pool()))
		require.Empty(t, mysqltest.Output(t, ExampleCreateSubscription))
		require.Equal(t, "hello\n", mysqltest.Output(t, Example))
		require.Equal(t, "at once\n", mysqltest.Output(t, ExampleOpenSubscription))
	})
}

func Example() {
	shop := os.Getenv("MQNOTIFY_DSN") // mysql://user:password@127.0.0.1:3306/shop
	topic, err := pubsub.OpenTopic(ctx, shop+"?topic=orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = topic.Shutdown(ctx) }()
	sub, err := pubsub.OpenSubscription(ctx, shop+"?topic=orders&subscription=mailer")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = sub.Shutdown(ctx) }() // sends what was acknowledged
	if err := topic.Send(ctx, &pubsub.Message{Body: []byte("hello")}); err != nil {
		fmt.Println(err)
		return
	}
	m, err := sub.Receive(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", m.Body)
	m.Ack()
}

// A program makes a subscription once, before the first message is sent: a subscription gets only later messages.
func ExampleCreateSubscription() {
	if err := gocloud.CreateTopic(ctx, db, "orders"); err != nil {
		fmt.Println(err)
		return
	}
	if err := gocloud.CreateSubscription(ctx, db, "orders", "mailer"); err != nil {
		fmt.Println(err)
		return
	}
}

// A program can use a DB that it has already opened, and options.
func ExampleOpenSubscription() {
	topic := gocloud.OpenTopic(db, "orders")
	defer func() { _ = topic.Shutdown(ctx) }()
	sub := gocloud.OpenSubscription(db, "orders", "mailer", gocloud.SubscriptionOptions{InFlight: 10})
	defer func() { _ = sub.Shutdown(ctx) }()
	if err := topic.Send(ctx, &pubsub.Message{Body: []byte("at once")}); err != nil {
		fmt.Println(err)
		return
	}
	m, err := sub.Receive(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", m.Body)
	m.Ack()
}
