// Live is a page that shows messages as they are published, in all browsers and from all
// servers: a board on which every visitor can write.
//
//	export MQNOTIFY_DSN='mysql://user:password@127.0.0.1/shop'
//	go run ./examples/live     # and open http://127.0.0.1:8080/, in two windows
//
// Package serve sends a topic's messages to browsers. It reads the table once for all of
// them. A browser whose connection was lost gets what it missed, from this server or from
// another one. The page can read the events of one topic, and use nothing else of serve.
package main

import (
	"context"
	"crypto/rand"
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
	"github.com/mqnotify/mqnotify/serve"
)

const topic = "board"

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "the address to serve")
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
	token := rand.Text() // for this process alone, and good for the events and nothing else
	events, err := serve.New(db.Core(), serve.Options{Topics: []string{topic}, Tokens: []string{"page " + token + " read:" + topic}})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	slog.InfoContext(ctx, "serving", "url", "http://"+listener.Addr().String())
	board := &board{events: events.Handler(), token: token, db: db}
	server := &http.Server{Handler: board.handler(), ReadHeaderTimeout: 5 * time.Second}

	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return events.Run(ctx) }) // when it ends, it closes the streams
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
