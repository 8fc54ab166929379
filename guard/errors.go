package guard

import (
	"errors"
	"fmt"

	"github.com/mqnotify/mqnotify/internal/dberror"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

var (
	// ErrNoRow means that there is no row with the key, or no claim to follow.
	ErrNoRow = errors.New("no such row")
	// ErrUnsafe means that advisory locks do not exclude here: each server of a
	// Galera cluster, or of a group with several primaries, has its own, and so has
	// a replica.
	ErrUnsafe = errors.New("advisory locks do not reach all servers here")
)

// TokenError means that a token is not that of the lease's holder. It says what the lease has.
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

// notHolder reports whether err is a TokenError.
func notHolder(err error) bool {
	var wrong *TokenError
	return errors.As(err, &wrong)
}

var errNotOurs = errors.New("the server says that somebody else took it, or that it was released")

func wrongf(format string, args ...any) error {
	return fmt.Errorf("guard: %w: "+format, append([]any{notify.ErrOptions}, args...)...)
}

// explain names what was done in an error, and the remedy.
func explain(what, name string, err error) error {
	if err == nil {
		return nil
	}
	if !server.Is(err, server.ErrBadField) { // a column of the user's table, which init does not make
		err = dberror.Explain(err, "row", "guard")
	}
	return fmt.Errorf("guard: %s %q: %w", what, name, err)
}
