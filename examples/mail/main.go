// Mail sends e-mails, each once, however many senders run and however they die.
//
// A queue alone sends at least once: a sender that dies after the mail server took the
// mail, and before that was noted, leaves a task that another one takes up. So each mail
// is marked before it is sent (guard.Once), and whoever finds the mark of another one
// does not send. The condition: of a mail whose sender died between mark and note nobody
// knows whether it was sent. It is not sent again, but goes to the dead letters, where a
// human decides.
//
//	export MQNOTIFY_DSN='mysql://user:password@127.0.0.1/shop'
//	go run ./examples/mail -smtp 127.0.0.1:25             # as many as you like
//	go run ./examples/mail alice@example.com 'Your order' # enters one
//	mqnotify tasks mail --state dead                      # the doubtful ones, and why
//	mqnotify once mail-17 --reset && mqnotify tasks mail --retry 17   # send it again
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	mailaddress "net/mail"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
	schema "github.com/mqnotify/mqnotify/sql"
)

// mail is a task's payload.
type mail struct {
	To      string `json:"to"`
	Subject string `json:"subject"`
}

func main() {
	smtp := flag.String("smtp", "127.0.0.1:25", "the mail server")
	visibility := flag.Duration("visibility", 30*time.Second, "how soon a dead sender's mails are looked at")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends it at once
	if err := run(ctx, *smtp, *visibility, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, smtp string, visibility time.Duration, args []string) error {
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if err := schema.Init(ctx, db.Pool()); err != nil { // in earnest a migration does these two
		return err
	}
	if err := queue.Create(ctx, db, "mail", queue.Settings{}); err != nil {
		return err
	}
	mails, err := queue.New(db, "mail", queue.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = mails.Close() }()
	if len(args) == 2 {
		return enter(ctx, mails, mail{To: args[0], Subject: args[1]})
	}

	worker, err := queue.NewWorker(mails, queue.WorkerOptions{
		Concurrency: 4,
		Visibility:  visibility,
		StopTimeout: 10 * time.Second,
	})
	if err != nil {
		return err
	}
	sender := sender{server: smtp, marks: guard.NewOnce(db)}
	return worker.Run(ctx, sender.handle)
}

// enter is what a shop does, with EnqueueTx in the transaction of the order.
func enter(ctx context.Context, mails *queue.Queue, m mail) error {
	address, err := mailaddress.ParseAddress(m.To)
	if err != nil {
		return err
	}
	payload, err := json.Marshal(mail{address.Address, m.Subject})
	if err != nil {
		return err
	}
	ids, err := mails.Enqueue(ctx, queue.Entry{Payload: payload, Retries: 20})
	if err == nil {
		fmt.Println("mail", ids[0])
	}
	return err
}
