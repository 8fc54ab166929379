package waiting

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
)

// GateStatus is who takes part in the gate of a table, as the server shows it.
type GateStatus struct {
	// Leader is the session that the table's trigger wakes. 0 means that there is none: everybody polls.
	Leader uint64
	// Followers is the number of the other sessions that wait at the gate, of those that the account may see. Each is a
	// process that listens to this table or to another one of the gate.
	Followers int
}

// ReadGate reads who takes part in the gate of a table. It takes no lock. Without PROCESS the account sees the sessions
// of its own only.
func ReadGate(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, database, table string) (s GateStatus, err error) {
	names := namesOf(database, Gate(table))
	var leader sql.Null[uint64]
	if err := db.QueryRowContext(ctx, "SELECT IS_USED_LOCK(?)", names.leader()).Scan(&leader); err != nil {
		return s, fmt.Errorf("waiting: read the leader: %w", err)
	}
	if s.Leader = leader.V; s.Leader == 0 {
		return s, nil
	}
	err = db.QueryRowContext(ctx, `SELECT COUNT(*) FROM information_schema.PROCESSLIST
		WHERE STATE = 'User lock' AND ID <> ? AND LOCATE(?, INFO) > 0`,
		s.Leader, names.phasesOf(s.Leader)).Scan(&s.Followers)
	if err != nil {
		return s, fmt.Errorf("waiting: read the followers: %w", err)
	}
	return s, nil
}

// String says who leads and how many follow.
func (s GateStatus) String() string {
	if s.Leader == 0 {
		return "nobody listens"
	}
	return "session " + strconv.FormatUint(s.Leader, 10) + " leads the gate, " + strconv.Itoa(s.Followers) + " others wait at it"
}
