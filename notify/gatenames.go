package notify

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/mqnotify/mqnotify/internal/lockname"
)

const (
	// lanes is in how many queues the listeners of a topic wait side by side: part
	// of the protocol, so that nobody can disagree on it. See docs/measurements.md.
	lanes = 4
	// slots is how many producers beside the keeper can have a bell. What others
	// insert is seen by the keeper's look, and where no table has it, their flag (Heard).
	slots = 32
	// maxGateName leaves room for what follows a gate's name in 64 characters:
	// ":bell", a slot, a connection id, a lane and a phase.
	maxGateName = 38
)

// gateNames are the names of a topic's locks.
type gateNames string

func newGateNames(database, topic string) gateNames {
	return gateNames(lockname.Make(maxGateName, "gate", database, topic))
}

// keeper is the lock of the session that keeps the gate.
func (n gateNames) keeper() string { return string(n) + ":keeper" }

// claim is the lock of a producer that keeps the gate, or is about to: a keeper
// that merely listens hands over to it.
func (n gateNames) claim() string { return string(n) + ":claim" }

// slot is the lock of a producer that has a bell.
func (n gateNames) slot(i int) string { return string(n) + ":bell" + strconv.FormatInt(int64(i), 36) }

// gate is the ring that the keeper turns.
func (n gateNames) gate() ring { return ring{string(n), lanes, phases} }

// bell is the ring that the producer in the slot turns, and the keeper waits on.
func (n gateNames) bell(i int) ring { return ring{n.slot(i), 1, phases} }

// ErrNoGate means that advisory locks can't wake listeners here; the error says why.
var ErrNoGate = errors.New("no gate is possible here")

// noGateError is ErrNoGate with its reason.
type noGateError struct{ error }

func (e noGateError) Error() string        { return ErrNoGate.Error() + ": " + e.error.Error() }
func (e noGateError) Is(target error) bool { return target == ErrNoGate }
func (e noGateError) Unwrap() error        { return e.error }

var (
	errReadOnly  = errors.New("the server is read-only, and its writers are elsewhere")
	errGalera    = errors.New("each node of a Galera cluster has advisory locks of its own")
	errPrimaries = errors.New("each primary of the group has advisory locks of its own")
)

// locksReach returns ErrNoGate where a lock of this server does not reach all who
// write to its tables.
func locksReach(caps *Capabilities) error {
	switch {
	case caps.Galera:
		return noGateError{errGalera}
	case caps.MultiPrimary:
		return noGateError{errPrimaries}
	case caps.ReadOnly:
		return noGateError{errReadOnly}
	}
	return nil
}

func noGatef(format string, args ...any) error { return noGateError{fmt.Errorf(format, args...)} }
