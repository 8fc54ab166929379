package notify

import "errors"

// LostLocks is how many advisory locks sessions of this DB have lost: a group's, a
// keeper's, a mutex's that the server, a proxy or the network took away. Locks that
// were released, or ended with a session that was closed, are none.
func (db *DB) LostLocks() uint64 { return db.lostLocks.Load() }

// count counts a lock that is lost.
func (l *Lock) count(cause error) {
	if l.session.lostLocks != nil && !errors.Is(cause, ErrSessionClosed) {
		l.session.lostLocks.Add(1)
	}
}
