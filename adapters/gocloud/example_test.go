package gocloud_test

import (
	"context"
	"fmt"
	"log"

	"gocloud.dev/pubsub"

	_ "github.com/mqnotify/mqnotify/adapters/gocloud" // the scheme mysql
)

func Example() {
	ctx := context.Background()
	const shop = "mysql://app@localhost:3306/shop"
	topic, err := pubsub.OpenTopic(ctx, shop+"?topic=orders")
	if err != nil {
		log.Fatal(err)
	}
	sub, err := pubsub.OpenSubscription(ctx, shop+"?topic=orders&subscription=mailer")
	if err != nil {
		log.Fatal(err)
	}
	if err := topic.Send(ctx, &pubsub.Message{Body: []byte("hello")}); err != nil {
		log.Fatal(err)
	}
	m, err := sub.Receive(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", m.Body)
	m.Ack()
	// sub.Shutdown and topic.Shutdown in the end.
}
