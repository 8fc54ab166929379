package waiting

import (
	"context"
	"database/sql"
	"fmt"
)

// ReadTriggers returns the changes for which each table of the database has a working wake trigger. If there are no routines, its
// error meets [NoRoutine].
func ReadTriggers(ctx context.Context, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}) (map[string]Events, error) {
	rows, err := db.QueryContext(ctx, "CALL "+TablesRoutine+"()")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	triggers := make(map[string]Events)
	for rows.Next() {
		if err := addTrigger(triggers, rows); err != nil {
			return nil, err
		}
	}
	return triggers, rows.Err()
}

// addTrigger adds a row of TablesRoutine.
func addTrigger(triggers map[string]Events, rows *sql.Rows) error {
	var table, on string
	err := rows.Scan(&table, &on)
	triggers[table] |= event[on]
	return err
}

// GateStatus is the participants of a table's gate, as the server shows them.
type GateStatus struct {
	// Leader is the session that the table's trigger wakes. 0 means that there is none, and all processes poll.
	Leader uint64
	// Followers is the number of other sessions that wait at the gate and that the account may see. Each belongs to a
	// process that listens to this table or to another one of the gate.
	Followers int
}

// ReadGate reads the participants of a table's gate. It takes no lock. Without PROCESS the account sees only its own
// sessions.
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

// String returns the leader and the number of followers.
func (s GateStatus) String() string {
	if s.Leader == 0 {
		return "no session waits for the trigger"
	}
	return fmt.Sprintf("session %d leads the gate, followed by %d", s.Leader, s.Followers)
}
