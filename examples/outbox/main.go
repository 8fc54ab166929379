// Outbox takes orders and sends them to the warehouse, another service. The order, the
// stock and the message are written in one transaction: there is no order without its message
// and no message without its order, even after a crash. A consumer group sends the messages,
// each at least once, with a key by which the warehouse recognizes a duplicate.
//
//	export MQNOTIFY_DSN='mysql://user:password@127.0.0.1/shop'
//	go run ./examples/outbox -warehouse http://127.0.0.1:9090/   # as often as you like
//	curl -X PUT -d lamp http://127.0.0.1:8081/orders/a-key-of-the-client
//
// One of the processes sends, the others stand by. A PUT may be repeated: each key makes one
// order. `mqnotify bridge` sends a topic to webhooks and brokers, and could replace this
// program's consumer.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mqnotify/mqnotify"
)

const topic = "order_events"

// tables are the shop's own tables.
var tables = []string{
	"CREATE TABLE IF NOT EXISTS stock (item VARCHAR(64) PRIMARY KEY, pieces BIGINT NOT NULL)",
	`CREATE TABLE IF NOT EXISTS orders (id BIGINT AUTO_INCREMENT PRIMARY KEY,
		client_key VARCHAR(64) NOT NULL UNIQUE, item VARCHAR(64) NOT NULL)`,
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8081", "the address to take orders at")
	warehouse := flag.String("warehouse", "http://127.0.0.1:9090/", "the URL to send orders to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends it at once
	if err := run(ctx, *listen, *warehouse); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen, warehouse string) error {
	db, err := mqnotify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if err := db.Init(ctx, topic); err != nil { // in production a migration does this
		return err
	}
	for _, table := range tables {
		if _, err := db.Core().Pool().ExecContext(ctx, table); err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	slog.InfoContext(ctx, "serving", "url", "http://"+listener.Addr().String())
	server := &http.Server{Handler: &orders{db}, ReadHeaderTimeout: 5 * time.Second}

	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error {
		return mqnotify.Consume(ctx, db, topic, "warehouse", handOver{warehouse}.hand, mqnotify.ConsumeOptions{
			From: "beginning",
			// The warehouse may be down for any time, so the attempts are not limited. What it
			// refuses goes to the dead letters; see hand.
			MaxAttempts:    -1,
			HandlerTimeout: 30 * time.Second,
			StopTimeout:    10 * time.Second,
		})
	})
	work.Go(func() error { return server.Serve(listener) })
	work.Go(func() error {
		<-ctx.Done()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return server.Shutdown(last) // finishes the requests in hand
	})
	if err := work.Wait(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
