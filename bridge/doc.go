// Package bridge takes the rows of a MySQL topic to a broker, a webhook, a file or a
// program, and brings a broker's messages into a topic.
//
//	to, err := bridge.Parse("nats://127.0.0.1:4222/?stream=orders", "orders")
//	b, err := bridge.New(db, "orders", to, bridge.Options{Consumer: consumer.Options{Group: "nats"}})
//	err = b.Run(ctx)
//
// # What holds
//
// A row's offset moves only after the destination has confirmed the row. So nothing
// is lost, whatever dies; what was under way then is sent again, with the same
// message id ("orders:17"). Which destinations drop it:
//
//   - nats (JetStream): by Nats-Msg-Id, within the stream's window of duplicates, and
//     beyond it by reading the subject's last 8,000 ids in the stream before the first message
//   - redis (Streams): without a limit: the entry's id is the row's
//   - file: by reading the ids at the file's end, and at that of the files before it that
//     rotated, before the first message
//   - amqp, mqtt, kafka, webhooks, exec, stdout: not; the receiver can, by the id
//
// Rows come in the order in which the consumer gives them: by id, but a row that
// commits late comes when it commits, unless the destination
// or Options.Consumer.Strict asks for strict order. Messages are sent ahead, Options.InFlight
// of them at most; a page's last one is waited for before the next page's first. One that
// the destination refuses for a while may so come to stand behind later ones, unless InFlight
// is 1.
//
// A confirmation is worth what the destination makes of it: a Redis without
// appendfsync always, a stream in memory, a mosquitto that is killed may lose what
// they have confirmed.
//
// A group's one active member sends, by the group's advisory lock; a second process
// with the same group is a hot standby. A member that lost the lock and does not
// know it yet may send for a moment together with the new one.
//
// # Who dies, and what then holds
//
//   - the destination: what was not confirmed is sent again over a new connection, with
//     waits that grow from 0.1 s to 10 s, for as long as it takes;
//   - the bridge: the next one, or the one that stands by, goes on after the last stored
//     offset; it repeats at most a page;
//   - the database: the bridge waits for it, with what it has confirmed in memory, and
//     stores that when it can; else it is repeated;
//   - a row that the destination refuses goes to the group's dead letters after
//     Options.MaxAttempts tries, or stops the bridge (Options.StopOnPoison).
package bridge
