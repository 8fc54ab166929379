// Package engine is a MySQL-compatible engine inside the own process, for `go run ./demo`: so the real producer and consumer
// can be seen at work without a server. It is for trying only: all is in memory, and one transaction runs at a time.
//
// It is github.com/dolthub/go-mysql-server. Two things of it are replaced here, since the demo could not work with them:
//
//   - its tables: each session commits a whole copy of every table that it has read, so that a mere SELECT undoes the INSERT
//     that committed meanwhile (500 INSERTs beside a reader left 276 rows). Here a statement that touches a table, or the
//     transaction that it is in, has all the tables to itself (see handler);
//   - its advisory locks: whoever asks at the right moment gets them, which is nearly always the session that has just
//     released, while MySQL serves its waiters in turn; and it cuts a timeout down to whole seconds (see locks).
package engine
