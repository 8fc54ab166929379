package notify

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
)

// GateStatus is a topic's gate as the server shows it. It comes from a few
// statements, one after the other: what moves meanwhile may show twice or not at all.
type GateStatus struct {
	// Keeper keeps the gate; its ID is 0 when nobody does.
	Keeper Participant
	// Claimant is the producer that keeps the gate or is about to; its ID is 0 when
	// there is none, and who keeps the gate is a listener then.
	Claimant Participant
	// Phase is one of the two phases that the keeper holds, from 0 on; -1 when none was found.
	Phase int
	// Bells are those of producers beside the keeper, in the order of their slots.
	Bells []Bell
	// Listeners are the sessions that wait on a phase, those that wait the longest
	// first. A process that listens has one, unless it keeps the gate.
	Listeners []Participant
	// Partial says that this account sees no sessions but its own: others may listen,
	// and of a participant elsewhere the ID alone is known.
	Partial bool
}

// Participant is a session that takes part in a gate.
type Participant struct {
	ID   uint64 // CONNECTION_ID()
	User string // empty when this account may not see the session
	Host string // as the server shows it, with a port perhaps
	// For is how long it has been waiting or idle, in whole seconds.
	For time.Duration
}

// Bell is what a producer rings that does not keep the gate.
type Bell struct {
	Slot  int
	Owner Participant
}

// ReadGateStatus asks this one server who takes part in a topic's gate. It takes no lock
// and needs no privilege, but PROCESS (or on MySQL, SELECT on
// performance_schema.threads) to see the sessions of other accounts. The topic need
// not be a table.
func ReadGateStatus(ctx context.Context, db *DB, topic string) (GateStatus, error) {
	r := &statusReader{db: db.pool, names: newGateNames(db.Name(), topic), GateStatus: GateStatus{Phase: -1}}
	for _, read := range []func(ctx context.Context) error{r.holders, r.phase, r.sessions} {
		if err := read(ctx); err != nil {
			return GateStatus{}, fmt.Errorf("notify: read the gate's status: %w", err)
		}
	}
	return r.GateStatus, nil
}

type statusReader struct {
	GateStatus
	db    *sqlx.DB
	names gateNames
}

// holders reads who holds the locks that a role goes with.
func (r *statusReader) holders(ctx context.Context) error {
	var owners [slots]uint64
	const held = "COALESCE(IS_USED_LOCK(?), 0)"
	args := []any{r.names.keeper(), r.names.claim()}
	into := []any{&r.Keeper.ID, &r.Claimant.ID}
	for slot := range slots {
		args = append(args, r.names.slot(slot))
		into = append(into, &owners[slot])
	}
	query := "SELECT " + held + strings.Repeat(", "+held, len(args)-1)
	if err := r.db.QueryRowxContext(ctx, query, args...).Scan(into...); err != nil {
		return err
	}
	for slot, owner := range owners {
		if owner != 0 && owner != r.Keeper.ID { // who holds the bell on that it had before
			r.Bells = append(r.Bells, Bell{Slot: slot, Owner: Participant{ID: owner}})
		}
	}
	return nil
}

// phase looks for the phase that the keeper holds in the first lane.
func (r *statusReader) phase(ctx context.Context) error {
	if r.Keeper.ID == 0 {
		return nil
	}
	ring := r.names.gate()
	var query strings.Builder
	query.WriteString("SELECT CASE ?")
	args := []any{r.Keeper.ID}
	for phase := range ring.phases {
		query.WriteString(" WHEN IS_USED_LOCK(?) THEN " + strconv.Itoa(phase))
		args = append(args, ring.name(r.Keeper.ID, 0, uint64(phase)))
	}
	query.WriteString(" END")
	// A ring may go by the place where the search is.
	for range 3 {
		var phase sql.NullInt64
		if err := r.db.QueryRowxContext(ctx, query.String(), args...).Scan(&phase); err != nil {
			return err
		}
		if phase.Valid {
			r.Phase = int(phase.Int64)
			return nil
		}
	}
	return nil
}

// process is a session as the server lists it.
type process struct {
	ID      uint64
	User    string
	Host    string
	Seconds int64
	Listens bool // it waits on a phase of the gate
	Own     bool // the session that asks
}

// sessions reads what can be seen of those who take part, and finds the listeners.
func (r *statusReader) sessions(ctx context.Context) error {
	seen, err := r.processes(ctx)
	if err != nil {
		return err
	}
	known := make(map[uint64]Participant, len(seen))
	for _, p := range seen {
		known[p.ID] = Participant{p.ID, p.User, p.Host, time.Duration(p.Seconds) * time.Second}
		if p.Listens {
			r.Listeners = append(r.Listeners, known[p.ID])
		}
	}
	identify := func(p *Participant) {
		if k, ok := known[p.ID]; ok && p.ID != 0 {
			*p = k
		}
	}
	identify(&r.Keeper)
	identify(&r.Claimant)
	for i := range r.Bells {
		identify(&r.Bells[i].Owner)
	}
	slices.SortFunc(r.Listeners, func(a, b Participant) int {
		return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.ID, b.ID))
	})
	return nil
}

// sessionView is a list of sessions, and what its columns are called.
type sessionView struct {
	from                                  string
	id, user, host, seconds, state, query string
}

var (
	// Of the list that both kinds of servers have, MySQL refuses to show the texts
	// while a statement runs whose text is no UTF-8; of its other one it does not.
	processList = []sessionView{
		{"performance_schema.processlist", "ID", "USER", "HOST", "TIME", "STATE", "INFO"},
		{"information_schema.PROCESSLIST", "ID", "USER", "HOST", "TIME", "STATE", "INFO"},
	}
	// On MySQL who may read this one sees the sessions of all accounts.
	threads = sessionView{"performance_schema.threads", "PROCESSLIST_ID", "PROCESSLIST_USER", "PROCESSLIST_HOST",
		"PROCESSLIST_TIME", "PROCESSLIST_STATE", "PROCESSLIST_INFO"}
)

// processes lists the sessions that take part, and those that wait for one of the
// gate's locks.
func (r *statusReader) processes(ctx context.Context) (all []process, err error) {
	views := processList
	// PROCESS is tried, since for roles SHOW GRANTS is no answer. This small table takes
	// it too, and reading it disturbs nobody.
	_, err = r.db.ExecContext(ctx, "SELECT COUNT(*) FROM information_schema.INNODB_CMP")
	if err != nil && server.Number(err) == 0 {
		return nil, err
	}
	if r.Partial = err != nil; r.Partial {
		views = append([]sessionView{threads}, views...)
	}
	for _, v := range views {
		all, err = r.list(ctx, v)
		if err == nil && slices.ContainsFunc(all, func(p process) bool { return p.Own }) { // it is switched on
			r.Partial = r.Partial && v != threads
			return all, nil
		}
		if err != nil && !server.NoPrivilege(err) && !server.Is(err, server.ErrNoSuchTable, server.ErrBadDatabase, server.ErrUnknownTable) {
			return nil, err
		}
	}
	return all, err
}

func (r *statusReader) list(ctx context.Context, v sessionView) (all []process, err error) {
	waits := v.state + " = 'User lock' AND LOCATE(?, " + v.query + ") > 0"
	sign := r.names.gate().sign()
	args := []any{sign, sign, r.Keeper.ID, r.Claimant.ID}
	for _, bell := range r.Bells {
		args = append(args, bell.Owner.ID)
	}
	query := "SELECT " + v.id + " AS id, COALESCE(" + v.user + ", '') AS user, COALESCE(" + v.host + ", '') AS host, " +
		"COALESCE(" + v.seconds + ", 0) AS seconds, " + v.id + " = CONNECTION_ID() AS own, " +
		"COALESCE(" + waits + ", 0) AS listens" +
		" FROM " + v.from + " WHERE " + waits + " OR " + v.id + " IN (CONNECTION_ID(), ?, ?" + strings.Repeat(", ?", len(r.Bells)) + ")"
	err = r.db.SelectContext(ctx, &all, query, args...)
	return all, err
}
