// Package bridge sends the rows of a topic to a broker, a webhook, a file or a program, and imports a broker's messages into a topic.
//
//	to, err := bridge.Parse("nats://127.0.0.1:4222/?stream=orders", "orders")
//	b, err := bridge.New(db, "orders", to, bridge.Options{Consumer: consumer.Options{Group: "nats"}})
//	err = b.Run(ctx)
//
// # Guarantees
//
// The bridge moves the offset past a row only after the destination has confirmed the row. So no row is lost, whichever process dies.
// Unconfirmed messages are sent again, with the same message id ("orders:17"). These destinations drop duplicates:
//
//   - nats (JetStream): by Nats-Msg-Id, within the stream's window of duplicates; beyond it the sink reads the subject's last ids in
//     the stream (at least 16,000) before the first message
//   - redis (Streams): without a limit, because the entry's id is the row's
//   - file: the sink reads the ids at the end of the file, and of the rotated files before it, before the first message
//   - amqp, mqtt, kafka, webhooks, exec, stdout: no; the receiver can drop duplicates by the id
//
// Rows are sent in the consumer's order: by id, except that a row that commits late is sent at its commit, unless the destination or
// Options.Consumer.Strict asks for strict order. Up to Options.InFlight messages are sent before the first of them is confirmed. All
// messages of a page are confirmed before the next page begins. So a message that the destination refuses for a while may be stored
// after later ones, unless InFlight is 1.
//
// A confirmation is only as durable as the destination makes it. A Redis without appendfsync always, a stream in memory, or a killed
// mosquitto may lose confirmed messages.
//
// A group's one active member, which holds the group's advisory lock, sends. A second process with the same group is a hot standby. A
// member that has lost the lock and has not noticed yet may send for a moment together with the new member.
//
// # Failures
//
//   - The destination dies: the bridge sends unconfirmed messages again over a new connection. It retries without a limit, with waits
//     that grow from 0.1 s to 10 s.
//   - The bridge dies: the next bridge, or the standby, continues after the last stored offset. It repeats at most a page.
//   - The database is away: the bridge waits, keeps the confirmed ids in memory, and stores the offset later. If the bridge also dies,
//     the messages are sent again.
//   - The destination refuses a row: after Options.MaxAttempts attempts the row goes to the group's dead letters, or ends the bridge
//     (Options.StopOnPoison).
package bridge
