package guard

import (
	"errors"
	"fmt"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// Errors that callers decide on, with errors.Is. ErrNotAcquired and ErrLockLost are
// notify's, so that a caller need not know which kind of lock it has.
var (
	// ErrNotAcquired means that another holder has the lock.
	ErrNotAcquired = notify.ErrNotAcquired
	// ErrLockLost means that the caller does not hold the lock any more, and that another
	// one may hold it. It is in the cause of a context made by Held.Context.
	ErrLockLost = notify.ErrLockLost
	// ErrNotHolder means that a token is not that of the lease's holder. errors.As
	// with a *TokenError tells more.
	ErrNotHolder = errors.New("the token is not the holder's")
	// ErrNoRow means that there is no row with the key.
	ErrNoRow = errors.New("no such row")
	// ErrNoPredecessor means that a claim is to follow one that is not there.
	ErrNoPredecessor = errors.New("what it is to follow was not claimed")
	// ErrUnknown means that the connection ended after a commit was asked for and
	// before its answer came: it was committed, or it was not.
	ErrUnknown = errors.New("no answer to the commit: it may have happened or not")
	// ErrUnsafe means that advisory locks do not exclude here: each server of a
	// Galera cluster, or of a group with several primaries, has its own, and so has
	// a replica.
	ErrUnsafe = errors.New("advisory locks do not reach all servers here")
	// ErrOptions is what an error about an argument is: a name, a time, a column.
	ErrOptions = errors.New("wrong option")
	// ErrDenied means that the account lacks a privilege.
	ErrDenied = errors.New("the account may not do this")
	// ErrReadOnly means that the server takes no writes.
	ErrReadOnly = errors.New("the server is read-only")
	// ErrNoState means that init did not make the tables that guards need.
	ErrNoState = errors.New("the tables of guards are not there")
)

// TokenError is an ErrNotHolder with what the lease says.
type TokenError struct {
	Name           string
	Token, Current uint64 // the one that was given, and the lease's newest; 0 if it was never taken
	Held           bool   // the lease is held now
}

func (e *TokenError) Error() string {
	switch {
	case e.Current == 0:
		return fmt.Sprintf("lease %q was never taken, with token %d or another: check the name", e.Name, e.Token)
	case e.Token == e.Current:
		return fmt.Sprintf("lease %q with token %d has expired or was released: take it again", e.Name, e.Token)
	case e.Held:
		return fmt.Sprintf("token %d does not hold lease %q, which is held with token %d: only its holder can release or renew it", e.Token, e.Name, e.Current)
	}
	return fmt.Sprintf("token %d does not hold lease %q, which nobody holds: the last token was %d; take it again", e.Token, e.Name, e.Current)
}

// Is makes every TokenError an ErrNotHolder.
func (e *TokenError) Is(target error) bool { return target == ErrNotHolder }

var errNotOurs = errors.New("the server says that somebody else took it, or that it was released")

func wrongf(format string, args ...any) error {
	return fmt.Errorf("guard: %w: "+format, append([]any{ErrOptions}, args...)...)
}

// explain names what was done in an error, and the remedy.
func explain(what, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case server.Is(err, server.ErrNoSuchTable):
		err = fmt.Errorf("%w: make them with `mqnotify init`: %w", ErrNoState, err)
	case server.NoPrivilege(err):
		err = fmt.Errorf("%w: `mqnotify grants --role guard` shows what it needs: %w", ErrDenied, err)
	case server.ReadOnly(err):
		err = fmt.Errorf("%w: connect to the primary: %w", ErrReadOnly, err)
	case server.Is(err, server.ErrCheckRead):
		err = fmt.Errorf("begin the transaction READ COMMITTED: a row has changed since its first read: %w", err)
	}
	return fmt.Errorf("guard: %s %q: %w", what, name, err)
}
