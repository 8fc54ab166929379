// Mail sends e-mails, each at most once, however many senders run and however they die.
//
// A queue alone sends at least once: if a sender dies after the mail server accepted the
// mail, and before the task was finished, another sender takes the task. So each mail is
// marked before it is sent (guard.Once), and a sender that finds another one's mark does not
// send. The price: if a sender dies between setting the mark and finishing the task, it is
// not known whether the mail was sent. It is not sent again; it goes to the dead letters,
// where a human decides.
//
//	export MQNOTIFY_DSN='mysql://user:password@127.0.0.1/shop'
//	go run ./examples/mail -smtp 127.0.0.1:25             # as many as you like
//	go run ./examples/mail alice@example.com 'Your order' # enters one
//	mqnotify tasks mail --state dead                      # the doubtful ones, and why
//	mqnotify once mail-17 --reset && mqnotify tasks mail --retry 17   # send it again
package main

import (
	"context"
	"flag"
	"log"
	mailaddress "net/mail"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/mqnotify/mqnotify"
	"github.com/mqnotify/mqnotify/guard"
)

// mail is a task's payload.
type mail struct {
	To      string `json:"to"`
	Subject string `json:"subject"`
}

func main() {
	smtp := flag.String("smtp", "127.0.0.1:25", "the mail server")
	visibility := flag.Duration("visibility", 30*time.Second, "the time after which another sender takes a dead sender's mails")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends it at once
	if err := run(ctx, *smtp, *visibility, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, smtp string, visibility time.Duration, args []string) error {
	db, err := mqnotify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if err := db.Init(ctx); err != nil { // in production a migration does these two
		return err
	}
	if err := db.InitQueues(ctx, "mail"); err != nil {
		return err
	}
	if len(args) == 2 {
		return enter(ctx, db, args[0], args[1])
	}
	marks, err := guard.NewOnce(db.Core(), guard.OnceTable{})
	if err != nil {
		return err
	}
	sender := sender{server: smtp, marks: marks}
	return mqnotify.Work(ctx, db, "mail", sender.handle, mqnotify.WorkOptions{
		Concurrency: 4,
		Visibility:  visibility,
		StopTimeout: 10 * time.Second,
	})
}

// enter is what a shop does, with EnqueueTx in the transaction of the order.
func enter(ctx context.Context, db *mqnotify.DB, to, subject string) error {
	address, err := mailaddress.ParseAddress(to)
	if err != nil {
		return err
	}
	return mqnotify.Enqueue(ctx, db, "mail", mail{address.Address, subject})
}
