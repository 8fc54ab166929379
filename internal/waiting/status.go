package waiting

import (
	"context"
	"database/sql"
	"fmt"
)

// ReadTriggers returns for which changes the tables of the database have a wake trigger that works. See [NoRoutine] for its
// error where there are none.
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
		var table, on string
		if err := rows.Scan(&table, &on); err != nil {
			return nil, err
		}
		triggers[table] |= event[on]
	}
	return triggers, rows.Err()
}

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
		return "no session waits for the trigger"
	}
	return fmt.Sprintf("session %d leads the gate, followed by %d", s.Leader, s.Followers)
}
