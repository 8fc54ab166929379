// Cache is a web server with a cache in memory, one of many. A program that changes a price
// publishes a message in the same transaction; each server then removes that price from its
// cache. No server polls, none knows of the others, and no change is missed.
//
//	export MQNOTIFY_DSN='mysql://user:password@127.0.0.1/shop'
//	go run ./examples/cache -listen 127.0.0.1:8081   # and another one on port 8082
//	curl -X PUT -d 250 http://127.0.0.1:8081/prices/1
//	curl -i http://127.0.0.1:8082/prices/1           # X-Cache: miss, then hit
//
// Other programs take part with INSERT INTO price_changes (payload) VALUES ('1') next to
// their UPDATE, in one transaction; package capture makes triggers for programs that can't.
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

// topic has a message for each change: the price's id.
const topic = "price_changes"

func main() {
	listen := flag.String("listen", "127.0.0.1:8081", "the address to serve")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends it at once
	if err := run(ctx, *listen); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen string) error {
	db, err := mqnotify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if err := db.Init(ctx, topic); err != nil { // in production a migration does this
		return err
	}
	const table = "CREATE TABLE IF NOT EXISTS prices (id BIGINT PRIMARY KEY, cents BIGINT NOT NULL)"
	if _, err := db.Core().Pool().ExecContext(ctx, table); err != nil {
		return err
	}
	prices := &prices{db: db}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	slog.InfoContext(ctx, "serving", "url", "http://"+listener.Addr().String())
	server := &http.Server{Handler: prices.handler(), ReadHeaderTimeout: 5 * time.Second}

	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error {
		// Without a group every server gets every change, and nothing is stored. After a lost
		// connection Consume continues where it was.
		return mqnotify.Consume(ctx, db, topic, "", prices.changed, mqnotify.ConsumeOptions{
			Watch: func(string) { prices.cache.open() },
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
