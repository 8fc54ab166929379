// Package serve serves topics over HTTP: their messages as Server-Sent Events or by long
// polling, publishing, their state, metrics, and a page for people.
//
// # One reader, many clients
//
// Each topic has a hub: one consumer, which reads the table once, and the newest messages
// in memory (Options.Buffer). A client is a place among them, and a goroutine that writes
// from there on. So the database is asked no more for 2,000 clients than for one, a
// message is encoded once, and a client that reads slowly does not hold up the others: when
// its place is no longer among the kept messages, or a write takes longer than
// Options.WriteTimeout, the server disconnects it, tells it why if it can, and the client
// comes back with its cursor.
//
// # The cursor
//
// Rows become visible out of the order of their ids, so an id alone does not say what a
// client has: one that has had 8 may lack 5, which commits later. Each event's id is
// therefore a cursor: the settled watermark, below which nothing can
// appear any more, and the runs of ids above it that this client has, such as
// "1041+1043-1050". A browser sends it back as Last-Event-ID. The server then gives the
// client every row that its cursor lacks: from memory, or, for one that was away for
// longer, from the table, in portions, for that client alone; a few clients read at a
// time, and none while it is given what was read. Then it goes on with what comes. Each row
// comes once.
//
// Messages that do not fit in the cursor may come twice: a cursor has at most 128 runs, and
// where more gaps than that are open at once, it leaves out the highest ids. A client that
// was away misses a row of a transaction that was open while the server was restarted, if
// more than 10,000 newer rows follow it (consumer.Options.From says why), and, on servers where
// writers can't be seen, the rows that consumer.Options.Grace names.
//
// A plain number is a cursor as well: all rows with larger ids, and no late one below it.
//
// # Who dies, and what then happens
//
//   - A client, or the network: its goroutine ends at the next write, or at the end of the
//     connection. It comes back with its cursor.
//   - The hub's connection: it reconnects and goes on where it was; streams stay.
//   - The database: the same, when it is back. Publishing answers 503 meanwhile.
//   - The server, orderly: streams get an event "end" with the reason and when to come
//     back; requests in hand are answered; then it ends. A client that connects to the next
//     server before that has begun to read waits.
//   - The server, otherwise: clients come back with their cursors, to it or to another one:
//     servers of the same topic know nothing of each other, and need not.
//   - The table, emptied by TRUNCATE: cursors are past its next id, and are refused with 409.
//     By DELETE: ids go on, and so do cursors.
//
// # Publishing
//
// A request with an Idempotency-Key publishes once: the key is stored in the transaction of
// the message, under a UNIQUE index, and a second request gets the answer of the first one.
// Without a key, a connection that is lost in the commit leaves it unknown whether the
// message is stored (502), as with producer.Publish.
//
// # Who may
//
// Tokens, each with scopes of topics. Without any the server listens on the loopback
// alone, answers only to the names of this machine (DNS rebinding) and takes no writes from
// other sites' pages (http.CrossOriginProtection).
//
// Prefer a consumer, in Go or by mqnotify consume, where every message has to be processed:
// it has offsets, retries and dead letters. This package is for showing messages.
package serve
