package core

import (
	"errors"

	"github.com/mqnotify/mqnotify/internal/ident"
)

var (
	// ErrOptions means that an option or an argument is invalid.
	ErrOptions = ident.ErrOptions
	// ErrReadOnly means that the server takes no writes.
	ErrReadOnly = errors.New("the server is read-only")
	// ErrNotAcquired means that a lock's timeout has passed and another session still holds the lock.
	ErrNotAcquired = errors.New("the lock is held by another session")
	// ErrLockLost means that the session no longer holds the lock. It is also in the cause of the contexts of Lock.Context.
	ErrLockLost = errors.New("the lock was lost")
)
