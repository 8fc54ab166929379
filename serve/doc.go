// Package serve serves topics over HTTP: messages as Server-Sent Events or by long polling, publishing, the topics' state, metrics,
// and a web page.
//
// # One reader, many clients
//
// Each topic has a hub: one consumer, which reads the table once, and the newest messages in memory (Options.Buffer). For each client
// the server keeps a position among these messages, and a goroutine that writes from there on. So 2,000 clients cost the database no
// more than one, a message is encoded once, and a slow client does not delay the others. If a client's position is no longer among
// the kept messages, or a write takes longer than Options.WriteTimeout, the server disconnects the client and, if possible, sends the
// reason. The client reconnects with its cursor.
//
// # The cursor
//
// Rows become visible out of the order of their ids, so an id alone does not say which rows a client has: a client that has row 8 may
// lack row 5, which commits later. Each event's id is therefore a cursor. It has the settled watermark, the id up to which no further
// row can appear, and the ranges of ids above it that this client has, such as "1041+1043-1050". A browser sends the cursor back as
// Last-Event-ID. The server then sends every row that the cursor lacks, from memory, or for a client that was away for longer, from
// the table, in portions; a few clients read the table at a time. Then it sends new rows. Each row is sent once.
//
// A cursor has at most 128 ranges. If more gaps are open at once, it leaves out the highest ids, and the client may get their messages
// twice. A client that was away misses a row of a transaction that was open while the server was restarted, if more than 10,000 newer
// rows follow it (see consumer.Options.From). On servers where writers can't be seen, it misses the rows that consumer.Options.Grace
// describes.
//
// A plain number is also a cursor: the client gets all rows with larger ids, and no late row with a smaller one.
//
// # Failures
//
//   - A client or the network fails: the client's goroutine ends at the next write, or when the connection ends. The client reconnects
//     with its cursor.
//   - The hub's connection is lost: the hub reconnects and continues. Streams stay open.
//   - The database is away: the hub reconnects when it is back. Meanwhile publishing answers 503.
//   - The server stops: streams get an event "end" with the reason and the time to reconnect, running requests are answered, and the
//     server ends. Clients of the next server wait until it has begun to read.
//   - The server dies: clients reconnect with their cursors, to this server or to another one. Servers of the same topic are
//     independent.
//   - The table is emptied by TRUNCATE: cursors are past its next id, and the server refuses them with 409. After a DELETE ids
//     continue, and cursors stay valid.
//
// # Publishing
//
// Requests with the same Idempotency-Key publish once. The server stores the key in the message's transaction, under a UNIQUE index, and
// gives a second request the answer of the first. Without a key, if the connection to the database is lost during the commit, it is
// unknown whether the message is stored (502), as with producer.Publish.
//
// # Access
//
// Clients send tokens, which have scopes for topics. Without tokens the server listens only on a loopback address, answers only requests
// for this machine's names (against DNS rebinding), and refuses writes from other sites' pages (http.CrossOriginProtection).
//
// This package is for showing messages. If every message must be processed, prefer a consumer, in Go or by mqnotify consume, which has
// offsets, retries and dead letters.
package serve
