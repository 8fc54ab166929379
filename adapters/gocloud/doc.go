// Package gocloud is a driver for [gocloud.dev/pubsub] over MySQL or MariaDB, with
// visibility timeouts and nacks, and without polling.
//
//	topic, err := pubsub.OpenTopic(ctx, "mysql://user:password@host:3306/shop?topic=orders")
//	sub, err := pubsub.OpenSubscription(ctx, "mysql://user:password@host:3306/shop?topic=orders&subscription=mailer")
//
// A subscription's URL may have visibility=DURATION and in_flight=NUMBER, as in SubscriptionOptions; further parameters are the
// MySQL driver's. Each opens a DB of its own.
//
// A topic is a list of subscriptions, and a subscription a queue of package queue, named
// TOPIC/SUBSCRIPTION: what is sent is entered into all of them in one transaction.
// CreateTopic and CreateSubscription make them, once; a subscription has what is sent
// after that.
//
// A message that was received is hidden from others for as long as its receiver lives;
// Ack marks it as done (queue.Prune deletes what is), and Nack gives it back at once. At least
// once: one whose receiver died comes again after the visibility timeout.
//
// [gocloud.dev/pubsub]: https://gocloud.dev/howto/pubsub/
package gocloud
