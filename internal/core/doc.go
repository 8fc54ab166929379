// Package core has what the public packages share: the DB, its sessions and their advisory locks, and the waiters. Users know
// the DB as notify.DB, and choose a waiter in consumer.Options.
//
// # Sessions and locks
//
// A [Session] is a connection outside the pool. Its advisory locks (GET_LOCK) live as long as the connection, and it never
// reconnects. A session notices the end of an idle connection at once. After two fifths of its IdleTimeout it sends a ping. If a
// proxy answers pings in place of the server, it asks the server for its locks instead. Without an answer it gives up its locks
// before the server gives them to another session. A [Lock] reports its loss through a channel and through the contexts of
// [Lock.Context], whose cause is ErrLockLost.
//
// # Waiters
//
// A [Waiter] waits for a change of a [Source]: the largest id of a table, the one-row flag, or a query of one number.
//
//	Auto       waits for hints; all Autos of a DB share a few sessions
//	Poll       reads the source repeatedly, with growing waits
//	Handshake  alternates with one producer on one lock, a protocol published in 2007
//
// [Auto.Mode] reports how an Auto waits, and why. The package comment of internal/waiting explains how a trigger wakes a
// process, and why no row is late.
package core
