// Worker checks whether links work, a job that takes long and fails often. A failed job is
// tried again after growing waits, another worker takes it if this one dies, and a link that
// is gone for good is not tried again. The result and the end of the job are written in one
// transaction: each link has one result, however often it was tried.
//
//	export MQNOTIFY_DSN='mysql://user:password@127.0.0.1/shop'
//	go run ./examples/worker                               # as many as you like
//	go run ./examples/worker https://example.com/ ...      # enters jobs
//	mqnotify tasks links                                   # where they are
package main

import (
	"context"
	"flag"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/mqnotify/mqnotify"
	"github.com/mqnotify/mqnotify/queue"
)

// table is the statement that creates the table of results.
const table = `CREATE TABLE IF NOT EXISTS links (id BIGINT AUTO_INCREMENT PRIMARY KEY,
	url VARCHAR(2000) NOT NULL, status INT NOT NULL, attempts INT NOT NULL)`

func main() {
	visibility := flag.Duration("visibility", 30*time.Second, "the time after which another worker takes the jobs of one that died")
	first := flag.Duration("retry", time.Second, "the wait after a job's first failure; it doubles")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends it at once
	if err := run(ctx, *visibility, *first, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, visibility, first time.Duration, urls []string) error {
	db, err := mqnotify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if err := db.Init(ctx); err != nil { // in production a migration does these three
		return err
	}
	if _, err := db.Core().Pool().ExecContext(ctx, table); err != nil {
		return err
	}
	if err := db.InitQueues(ctx, "links"); err != nil {
		return err
	}
	if len(urls) > 0 {
		return enter(ctx, db, urls)
	}
	slog.InfoContext(ctx, "working", "queue", "links")
	return mqnotify.Work(ctx, db, "links", checker{db.Core().Pool()}.handle, mqnotify.WorkOptions{
		Concurrency: 8,
		Visibility:  visibility, // renewed while a handler runs, however long
		Backoff:     func(attempt int) time.Duration { return first << min(attempt-1, 10) },
		StopTimeout: 20 * time.Second, // less than systemd or Kubernetes waits
	})
}

// enter enters the links that are not in the queue already. It uses package queue, because each entry has a unique key.
func enter(ctx context.Context, db *mqnotify.DB, urls []string) error {
	links, err := queue.New(db.Core(), "links", queue.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = links.Close() }()
	entries := make([]queue.Entry, len(urls))
	for i, url := range urls {
		entries[i] = queue.Entry{Payload: []byte(url), Unique: url, Retries: 8}
	}
	ids, err := links.Enqueue(ctx, entries...)
	slog.InfoContext(ctx, "entered", "ids", ids)
	return err
}
