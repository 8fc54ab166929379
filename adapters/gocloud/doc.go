// Package gocloud is a driver for [gocloud.dev/pubsub] on MySQL or MariaDB, with visibility timeouts and nacks, and without polling.
//
//	topic, err := pubsub.OpenTopic(ctx, "mysql://user:password@host:3306/shop?topic=orders")
//	sub, err := pubsub.OpenSubscription(ctx, "mysql://user:password@host:3306/shop?topic=orders&subscription=mailer")
//
// A subscription's URL may have visibility=DURATION and in_flight=NUMBER, as in SubscriptionOptions. Other parameters are the MySQL
// driver's. Each URL opens a DB of its own.
//
// A topic is a list of subscriptions. A subscription is a queue of package queue, named TOPIC/SUBSCRIPTION. Send enters a message into
// the queues of all subscriptions in one transaction. CreateTopic and CreateSubscription make topics and subscriptions, once. A
// subscription gets the messages that are sent after it was made.
//
// A received message is hidden from other receivers while its receiver lives. Ack marks it as done (queue.Prune deletes done tasks),
// and Nack gives it back at once. Delivery is at least once: if a receiver dies, another one gets its messages after the visibility
// timeout.
//
// [gocloud.dev/pubsub]: https://gocloud.dev/howto/pubsub/
package gocloud
