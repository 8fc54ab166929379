package notify

import (
	"context"
	"log/slog"
	"time"
)

func init() { interrupting = 8 * time.Second }

// CommitUser is for the tests of commits.
type CommitUser = commitUser

func (db *DB) Commits() *CommitUser { return db.commits() }

func (u *commitUser) Close() { u.close() }

func (u *commitUser) Brought() { u.brought() }

// DB is the gate's.
func (g *Gate) DB() *DB { return g.db }

// Rung is how often this process's listeners were woken, by its own rings if it keeps
// the gate and has none.
func (g *Gate) Rung() uint64 {
	state, _ := g.gate.now()
	return state.wakes
}

// GateLoss are ways to make a gate lose wakes, and delays that it must bear.
type GateLoss struct {
	Phases int    // of a ring; 0 means as many as it has
	Old    bool   // a phase is waited for however long ago it was seen
	Early  bool   // rows are read before the phase is known that is waited for next
	Delay  func() // is called between knowing a phase and waiting for it
}

// WithLoss is the options with that loss.
func (o GateOptions) WithLoss(l GateLoss) GateOptions {
	o.lossy = &lossy{phases: l.Phases, old: l.Old, early: l.Early, delay: l.Delay}
	return o
}

// WithDescribeAgain is the options of a keeper that asks again that often; 0 means as usual.
func (o GateOptions) WithDescribeAgain(again time.Duration) GateOptions {
	o.describeAgain = again
	return o
}

// GateLocks are the names of the keeper's lock and of the claim.
func GateLocks(database, topic string) (keeper, claim string) {
	names := newGateNames(database, topic)
	return names.keeper(), names.claim()
}

// Retime is what a session does that becomes a keeper.
func (s *Session) Retime(ctx context.Context, idle time.Duration) error { return s.retime(ctx, idle) }

// ReadsAhead tells whether the idle connection is read.
func (s *Session) ReadsAhead() bool {
	s.quiet.mu.Lock()
	defer s.quiet.mu.Unlock()
	return s.quiet.ahead != nil
}

// Lanes is for a floor that waits in as many.
const Lanes = lanes

// Concludes is what ends the keeping of a keeper with that lock whose look sees another session
// as the keeper, nil if nothing does.
func (s *Session) Concludes(ctx context.Context, lock *Lock) (verdict error) {
	l := &look{keeping: &keeping{session: s, lock: lock}, stop: func(cause error) { verdict = cause }}
	l.take(ctx, view{keeper: s.ID() + 1})
	return verdict
}

// Bears tells whether a keeper goes on after a look that failed so.
func Bears(failure error) bool {
	bears := true
	l := &look{keeping: &keeping{gate: &gate{log: slog.New(slog.DiscardHandler)}}, stop: func(error) { bears = false }}
	l.failed(context.Background(), failure)
	return bears
}
