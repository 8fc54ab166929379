// Package notify waits and wakes through MySQL's and MariaDB's advisory locks
// (GET_LOCK, RELEASE_LOCK), with ordinary privileges. It knows no rows: a
// notification is a hint, and the durable read is the truth.
//
// # The one fact
//
// GET_LOCK is the only statement that any client may run and that another
// client's action ends, and it is ended only by the release of a lock that was
// held when the wait began. A session's death releases what it held: a crash
// rings.
//
// # Sessions and locks
//
// A [Session] is a connection of its own. The locks it holds live and die with it,
// and it never reconnects. While it is idle its socket is watched, so that an end
// which the server or a proxy brings about is known at once and costs no
// statement; a touch well inside wait_timeout keeps it, and asks the server
// whether its locks are still its own. A session that gets no answer stops
// trusting its locks before the server would give them away: trust counts from
// the moment the last statement began that showed them to be held, less a sixth.
//
// A [Lock] tells its loss through a channel, and through contexts made by
// [Lock.Context], whose cause is ErrLockLost.
//
// # Waiters
//
// A [Waiter] blocks until a topic's head may have moved. [Handshake] alternates
// with one producer on one lock, as published in 2007. [Poll] looks at the table's
// largest id or at the one-row flag, with waits that grow. Both give up after a
// bound, for the caller to look anyway: a lost hint costs time, never a row.
package notify
