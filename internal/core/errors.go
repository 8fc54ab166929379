package core

import "errors"

var (
	// ErrOptions is the error for an option or an argument that makes no sense.
	ErrOptions = errors.New("wrong option")
	// ErrNotAcquired is returned when a lock's timeout passed and another session still holds it.
	ErrNotAcquired = errors.New("the lock is held by another session")
	// ErrLockLost is returned, and is the cause of a context given by Lock.Context, when the session no longer holds the lock.
	ErrLockLost = errors.New("the lock was lost")
)
