package watermill_test

import (
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	adapter "github.com/mqnotify/mqnotify/adapters/watermill"
	"github.com/mqnotify/mqnotify/notify"
)

// A router that runs on MySQL.
func Example() {
	db, err := notify.Open("app@tcp(localhost:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	logger := watermill.NewStdLogger(false, false)
	subscriber, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{ConsumerGroup: "mailer", InitializeSchema: true}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router.AddConsumerHandler("mail", "orders", subscriber, func(m *message.Message) error {
		fmt.Printf("mail for %s\n", m.Payload)
		return nil
	})
	// router.Run(ctx) runs until ctx ends; then router.Close and db.Close.
}
