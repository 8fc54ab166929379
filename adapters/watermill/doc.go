// Package watermill is a publisher and subscriber for [Watermill] on MySQL or MariaDB, without polling and without a further server. Any
// of Watermill's routers runs on it, and its forwarders to other brokers.
//
//	db, err := notify.Open(dsn)
//	publisher, err := watermill.NewPublisher(db, watermill.PublisherConfig{InitializeSchema: true}, logger)
//	subscriber, err := watermill.NewSubscriber(db, watermill.SubscriberConfig{ConsumerGroup: "mailer"}, logger)
//
// A topic is a table. The header _watermill_message_uuid has a message's UUID, the other headers are its metadata, and the row's payload
// is its payload. Rows that other programs insert are messages too. Their UUID consists of the topic and the id, so that it is the same
// in every delivery.
//
// # Guarantees
//
// Delivery is at least once, in the order of arrival: a subscription delivers a message after the previous one was acknowledged. After a
// Nack it delivers the same message again, after NackResendSleep. No message is lost, also when transactions commit out of order.
//
// A ConsumerGroup stores its offset. One of its subscribers is active, and another takes over when it dies. Without a group each
// subscription begins at From. It continues after a lost connection, but not after a restart.
//
// With SubscriberConfig.Transaction, what a handler writes in the transaction that [TxFromContext] returns is written exactly once,
// because it is committed together with the group's offset. [Publisher.WithTx] publishes in a transaction of the caller's.
//
// Messages with a delay of Watermill's package components/delay wait in PublisherConfig.DelayQueue, a queue of package queue.
// Subscribers with the same DelayQueue publish each to its topic once, when it is due. Other messages do not wait for them.
//
// The context of a publisher's message does not cross the database. Watermill's test suite therefore runs with ContextPreserved false,
// which is stricter.
//
// [Watermill]: https://watermill.io
package watermill

// uuidHeader is the header that holds a message's UUID.
const uuidHeader = "_watermill_message_uuid"
