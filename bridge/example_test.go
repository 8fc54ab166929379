package bridge_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/bridge"
	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// The examples use ctx and db. notify.Open made db, init made its tables, and ctx ends when the program should end.
var (
	ctx = context.Background()
	db  *notify.DB
)

// TestExamples runs the examples on each server with a broker. It ends an example that would run forever as soon as the
// condition in until holds.
func TestExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		broker := brokertest.NATS(t)
		t.Setenv("BROKER", broker.URL("stream=orders"))
		var err error
		db, err = notify.OpenConfig(s.Database(t))
		require.NoError(t, err)
		defer db.Close()
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders", "payments"))
		_, err = db.Pool().ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('one'), ('two')")
		require.NoError(t, err)
		for _, example := range []struct {
			run   func()
			lines int
			until string // a query that returns true when the example is done
		}{
			{ExampleNew, 0, "SELECT COUNT(*) = 1 FROM mqnotify_offset WHERE group_name = 'nats' AND settled >= 2"},
			{ExampleNewImport, 0, "SELECT COUNT(*) = 2 FROM payments"},
			{ExampleOptions, 2, ""},
		} {
			stop := mysqltest.Until(t, &ctx, db.Pool().DB, example.until)
			printed := mysqltest.Output(t, example.run)
			require.Equal(t, example.lines, strings.Count(printed, "\n"), printed)
			stop()
		}
	})
}

// This bridge sends a topic into a JetStream stream, from the first row on, until Ctrl-C.
func ExampleNew() {
	to, err := bridge.Parse(os.Getenv("BROKER"), "orders") // nats://127.0.0.1:4222/?stream=orders
	if err != nil {
		log.Fatal(err)
	}
	b, err := bridge.New(db, "orders", to, bridge.Options{
		Consumer: consumer.Options{Group: "nats", From: "beginning"},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	if err := b.Run(ctx); err != nil {
		log.Print(err)
	}
}

// This bridge sends the existing rows, reports its progress, and ends.
func ExampleOptions() {
	b, err := bridge.New(db, "orders", bridge.Writer(os.Stdout), bridge.Options{
		Consumer: consumer.Options{Group: "backfill", From: "beginning", StopAtEnd: true},
		Report: func(p bridge.Progress) {
			log.Printf("%d rows in %v, %v left", p.Sent, p.Elapsed, p.Left)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := b.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// This import stores each message of a stream once in a topic.
func ExampleNewImport() {
	i, err := bridge.NewImport(db, os.Getenv("BROKER"), "payments", bridge.ImportOptions{}) // nats://127.0.0.1:4222/?stream=orders
	if err != nil {
		log.Fatal(err)
	}
	if err := i.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func ExampleParse() {
	_, err := bridge.Parse("nats://me:secret@127.0.0.1/?strem=orders", "orders")
	fmt.Println(err)
	// Output: bridge: wrong option: URL nats://me:***@127.0.0.1/?strem=orders: unknown parameter "strem"; the known ones are ca, creds, duplicates, replicas, stream, subject
}

func ExampleMessageID() {
	fmt.Println(bridge.MessageID(consumer.Message{Topic: "orders", ID: 17}))
	// Output: orders:17
}
