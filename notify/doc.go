// Package notify is LISTEN and NOTIFY, and a SELECT that waits, on MySQL and MariaDB, with ordinary privileges. It also has
// what all packages of mqnotify share: the [DB], the errors, the transaction of the caller's, and the policies of waits.
//
// [Listen] and [Notify] are LISTEN and NOTIFY with a payload. A notification is a row of the table mqnotify_notification,
// kept for an hour, so that a listener that lost its connection gets those that it missed. [NotifyTx] sends it with the
// caller's transaction. Any program sends one with a plain INSERT.
//
// [Await] is a SELECT that waits until it returns rows. It asks at every change if the table has wake triggers for insert,
// update and delete, and otherwise at least once a second.
//
// A [Flag] is a counter in one row, which producers or a trigger set, for changes that a largest id does not show. A consumer
// polls it (consumer.Options.Flag).
//
// # What ends a wait
//
// Listeners, consumers and workers wait alike. A wait ends with a hint, which carries no data: the rows are read afterwards,
// and a hint that is lost costs time and no row. A hint is
//
//   - A wake trigger on the table (mqnotify wake install), at the commit of any program's INSERT, UPDATE or DELETE.
//   - A call of the procedure mqnotify_wake, which producers make, and DB.Wake. It is for programs that write to a table
//     without a trigger, after their commit.
//   - Any commit on the server, if the table has no trigger, or the writers are on another server, and MySQL has GTIDs.
//   - Without a trigger, a poll: after 10 ms at first, and at least once a second. All topics of a DB are polled in one
//     statement.
//
// A process that waits keeps no transaction open and holds no lock on the table, so that ALTER TABLE does not wait for it.
// The package comment of internal/waiting tells how a trigger wakes a process, and why no row is late.
//
// # Waits
//
// [Fibonacci] and [Exponential] are waits that grow, for the options of consumers and bridges.
package notify
