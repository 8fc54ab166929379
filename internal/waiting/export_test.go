package waiting

import (
	"context"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Sleeps reports whether the process only waits for a hint.
func (l *Listener) Sleeps() bool { return l.waiting.process.poller.asleep.Load() }

// BeforeSending makes the leader's session call f before it sends a statement. Call it before the process leads.
func (l *Listener) BeforeSending(f func()) { l.topic.gate.before.Store(&f) }

// SetLeaderWait changes the length of a leader's wait. Call it before the first Listen.
func (w *Waiting) SetLeaderWait(d time.Duration) { w.leaderWait = d }

// LeaderLock returns the name of the leader's lock of a table's gate.
func LeaderLock(database, table string) string { return namesOf(database, Gate(table)).leader() }

func (l *Listener) Table() string { return l.topic.Table }

// ErrDenied is the reason if the triggers can't wake a session.
var ErrDenied = errDenied

// Parting is how long a closed session may continue.
const Parting = parting

// PingAfterItsLimit pings over a session whose last statement's limit has passed.
func PingAfterItsLimit(ctx context.Context, config *mysql.Config) error {
	s, err := connect(ctx, config, readCommitted)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.ask(time.Second, "SELECT 1", nil, new(int)); err != nil {
		return err
	}
	_ = s.socket.SetDeadline(time.Unix(1, 0))
	return s.ping()
}

// PhaseLock returns the name of a phase of the leader of a table's gate.
func PhaseLock(database, table string, leader uint64, phase int) string {
	return namesOf(database, Gate(table)).phase(leader, phase)
}
