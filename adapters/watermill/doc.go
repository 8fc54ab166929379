// Package watermill publishes and subscribes for [Watermill] over MySQL or MariaDB,
// with nothing else and without polling: any of its routers runs on it, and its
// forwarders to other brokers.
//
//	db, err := notify.Open(dsn)
//	publisher, err := watermill.NewPublisher(db, watermill.PublisherConfig{InitializeSchema: true}, logger)
//	subscriber, err := watermill.NewSubscriber(db, watermill.SubscriberConfig{ConsumerGroup: "mailer"}, logger)
//
// A topic is a table. A message's UUID is its header _watermill_message_uuid, its metadata the other
// headers, and its payload the row's. Rows that others insert are messages too: theirs
// has a UUID made of the topic and the id, the same whenever it is delivered.
//
// # What is promised
//
// At least once, in the order of arrival: a subscription hands out a message when the one
// before was acknowledged. A Nack hands the same message out again, after
// NackResendSleep. No message is lost, also when transactions commit out of order.
//
// A ConsumerGroup stores its offset; of its subscribers one is active, and another takes
// over when that dies. Without a group each subscription begins by itself, at From,
// and goes on after a lost connection, but not after a restart.
//
// With SubscriberConfig.Transaction a message is handled exactly once, as far as the handler writes in the transaction that
// [TxFromContext] returns: it is committed together with the group's offset. [Publisher.WithTx] publishes in a transaction of
// the caller's.
//
// Messages with a delay of Watermill's package components/delay wait in PublisherConfig.DelayQueue, a queue of package
// queue, and subscribers with the same DelayQueue bring each into its topic once, when it is due. Others need not wait for
// them.
//
// The context of a publisher's message does not cross the database, so that Watermill's
// suite runs with ContextPreserved false, which is the stricter.
//
// [Watermill]: https://watermill.io
package watermill

// uuidHeader is the header that holds a message's UUID.
const uuidHeader = "_watermill_message_uuid"
