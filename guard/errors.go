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
	// ErrUnsafe means that advisory locks do not exclude here, because the server is one of several that have locks of their
	// own: a node of a Galera cluster, a member of a group with several primaries, or a replica.
	ErrUnsafe = errors.New("advisory locks do not reach all servers here")
)

// TokenError means that the token does not hold the lease.
type TokenError struct {
	Name           string
	Token, Current uint64 // the token of the call, and the lease's newest one; 0 if it was never taken
	Held           bool   // the lease is held, with the token Current
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
	return fmt.Sprintf("token %d does not hold lease %q, which has no holder: the last token was %d; take it again", e.Token, e.Name, e.Current)
}

// notHolder reports whether err is a TokenError.
func notHolder(err error) bool {
	var wrong *TokenError
	return errors.As(err, &wrong)
}

var errNotOurs = errors.New("the server says that another holder took it, or that it was released")

func wrongf(format string, args ...any) error {
	return fmt.Errorf("guard: %w: "+format, append([]any{notify.ErrOptions}, args...)...)
}

// explain adds the action, the name and the remedy to an error.
func explain(what, name string, err error) error {
	if err == nil {
		return nil
	}
	if !server.Is(err, server.ErrBadField) { // a missing column belongs to a user's table, which init does not create
		err = dberror.Explain(err, "row", "guard")
	}
	return fmt.Errorf("guard: %s %q: %w", what, name, err)
}
