// Package notify waits for changes of tables, wakes the processes that wait, and holds locks, on MySQL and MariaDB, with
// ordinary privileges. A wait ends with a hint, which carries no data. The caller reads the rows afterwards, and a hint
// that is lost costs time and no row.
//
// # Sessions and locks
//
// A [Session] is a connection of its own. Its advisory locks (GET_LOCK) live as long as the connection, and it never
// reconnects. A session notices the end of an idle connection at once. It sends a ping after two fifths of its
// IdleTimeout, or asks the server for its locks where something between answers pings in the server's place. Without
// an answer it gives up its locks before the server gives them to another session. A [Lock] reports its loss through a
// channel and through the contexts of [Lock.Context], whose cause is ErrLockLost.
//
// # Waiters
//
// A [Waiter] waits for a change of a [Source]: the largest id of a table, the one-row flag, or a query of one number.
//
//	Auto       waits for hints; all Autos of a DB share a few sessions
//	Poll       reads the source again and again, with growing waits
//	Handshake  alternates with one producer on one lock, as published in 2007
//
// What ends a wait of [Auto], and when:
//
//   - A wake trigger on the table (mqnotify wake install), at the commit of any program's INSERT, UPDATE or DELETE.
//   - A call of the procedure mqnotify_wake, which [DB.Wake] makes, and a [Waker] in the background. It is for
//     programs that write to a table without a trigger, after their commit.
//   - Any commit on the server, if the table has no trigger, or the writers are on another server, and MySQL has GTIDs.
//   - Without a trigger, a poll: after 10 ms at first, and at least once a second. All topics of a DB are polled in one
//     statement.
//   - The bound that the caller gives.
//
// A process that waits keeps no transaction open and holds no lock on the table, so that ALTER TABLE does not wait for it.
// [Auto.Mode] reports which of these applies, and why. The package comment of internal/waiting tells how a trigger wakes a
// process, and why no row is late.
//
// # What builds on them
//
// [Await] is a SELECT that waits until it returns rows. It asks at every change if the table has wake triggers for insert,
// update and delete, and otherwise at least once a second.
//
// [Listen] and [Notify] are LISTEN and NOTIFY with a payload. A notification is a row of the table mqnotify_notification,
// kept for an hour, so that a listener that lost its connection gets those that it missed. [NotifyTx] sends it with the
// caller's transaction. Any program sends one with a plain INSERT.
//
// A [Flag] is a counter in one row, which producers or a trigger set, for changes that a largest id does not show.
package notify
