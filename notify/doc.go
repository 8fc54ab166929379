// Package notify provides LISTEN and NOTIFY, and a SELECT that waits, on MySQL and MariaDB, with ordinary privileges. It also has
// what all packages of mqnotify share: the [DB], the errors, the interface of the caller's transaction, and the backoff policies.
//
// [Listen] and [Notify] are LISTEN and NOTIFY with a payload. A notification is a row of the table mqnotify_notification,
// kept for an hour, so that a listener that lost its connection receives the notifications that it missed. [NotifyTx] sends a
// notification with the caller's transaction. Any program sends one with a plain INSERT.
//
// [Await] runs a SELECT until it returns rows. It runs it at every change if the table has wake triggers for insert,
// update and delete, and otherwise at least once a second.
//
// A [Flag] is a counter in one row. Producers or a trigger increment it at changes that the largest id does not show. A consumer
// polls it (consumer.Options.Flag).
//
// # What ends a wait
//
// Listeners, consumers and workers wait in the same way. A hint ends a wait. It carries no data: the process reads the rows
// afterwards, so a lost hint costs time and no row. A hint comes from
//
//   - A wake trigger on the table (mqnotify wake install), at any program's INSERT, UPDATE or DELETE.
//   - A call of the procedure mqnotify_wake, which producers and DB.Wake make. Other programs that write to a table
//     without a trigger call it after their commit.
//   - Any commit on the server, if the table has no trigger, or the writers are on another server, and MySQL has GTIDs.
//   - A poll, without a trigger: after 10 ms at first, and at least once a second. All topics of a DB are polled in one
//     statement.
//
// A process that waits keeps no transaction open and holds no lock on the table, so that ALTER TABLE does not wait for it.
// The package comment of internal/waiting explains how a trigger wakes a process, and why no row is late.
//
// # Backoff
//
// [Fibonacci] and [Exponential] are growing waits, for the options of consumers and bridges.
package notify
