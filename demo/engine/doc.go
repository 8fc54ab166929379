// Package engine is a MySQL-compatible engine inside the demo's process, so that `go run ./demo` shows the real producer and consumer
// without a server. It is for trying only: all data are in memory, and one transaction runs at a time.
//
// It is github.com/dolthub/go-mysql-server. The package replaces two parts of it, with which the demo could not work:
//
//   - Its tables. Each session commits a copy of every table that it has read, so that a SELECT undoes an INSERT that was committed
//     meanwhile (after 500 INSERTs next to a reader 276 rows were left). Here a transaction that uses a table has all tables to itself
//     (see handler).
//   - Its advisory locks. The session that asks at the right moment gets a lock, nearly always the session that has just released it,
//     while MySQL serves waiting sessions in order. It also truncates a timeout to whole seconds (see locks).
package engine
