// Package core has what the public packages share: the DB, its sessions and their advisory locks, and the waiters. Users meet
// it as notify.DB, and choose a way of waiting in consumer.Options.
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
// [Auto.Mode] reports which way an Auto waits, and why. The package comment of internal/waiting tells how a trigger wakes a
// process, and why no row is late.
package core
