package waiting

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
)

const (
	// leaderWait is how long the leader's statement waits for a KILL. Whenever it ends, all processes poll once. A
	// follower's wait is longer by answer, so that it times out only if the leader is stuck.
	leaderWait = 70 * time.Second
	// least is the shortest rest of a leader, a slot.
	least = time.Second / SlotsPerSecond
	// most is its longest rest, while writers wake it all the time.
	most = 50 * time.Millisecond
	// atOnce is the wait of a leader below which it counts writers as many. A statement alone takes half of it.
	atOnce = 500 * time.Microsecond
	// fresh is the maximum age of the information that a phase is held when a follower begins to wait for it. A leader takes a
	// phase of the same name again after at least 255 rests, which is 255 ms.
	fresh = 200 * time.Millisecond
	// onTrial is how long a session waits for the KILL that shows that it may lead.
	onTrial = 2 * time.Second
	// mostTrial is the longest pause between two of its calls of mqnotify_wake.
	mostTrial = onTrial / 8
)

var (
	errForeignLock       = errors.New("another program holds a lock of the gate")
	errPinLost           = errors.New("the process's lock was lost")
	errElsewhere   error = lasting("the server's locks do not reach all writers of its tables")
	errNoRoutine   error = lasting("the database has no procedure " + WakeRoutine + " that this account may call")
	errNoLeader          = errors.New("a session holds the gate's leader lock and does not lead")
	errShared      error = lasting("statements of one connection reach several sessions of the server, as a proxy shares them among its clients")
	errSystemUser        = errors.New("this account has SYSTEM_USER, and so the sessions of other accounts can't wake it: let the listener use an account of its own")
	errDenied      error = lasting("mqnotify_wake does not end the wait of this account's session")
)

// gate is this process's session in a gate, which leads or follows.
type gate struct {
	process *process
	number  int
	names   lockNames
	table   string // one of the gate's tables
	place   atomic.Pointer[place]
	why     atomic.Pointer[error]  // why the process has no place
	again   chan struct{}          // has a value when it is worth joining again; capacity 1
	before  atomic.Pointer[func()] // nil, or a test's function that is called before the leader sends a statement
}

// place is what the poller must know about the gate before it may sleep.
type place struct {
	leader uint64 // the id of its session
	// phase is, in the leader's own process, the phase that the leader's last statement takes.
	phase string
}

// stay keeps a session in the gate until ctx ends.
func (g *gate) stay(ctx context.Context) {
	keep(ctx, g.again, func() error {
		err := errNoRoutine // without the routine no session can lead, so the others need not try
		if !g.process.noRoutine.Load() {
			err = g.join(ctx)
		}
		g.place.Store(nil)
		g.why.Store(&err)
		g.process.log.DebugContext(ctx, "left the gate; will join it again", "gate", g.number, "error", err)
		g.process.hint(g.number)
		return err
	})
}

// retry ends the pause of a gate that left because the routine was missing.
func (g *gate) retry() {
	if why := g.why.Load(); why != nil && (errors.Is(*why, errNoRoutine) || NoRoutine(*why)) {
		poke(g.again)
	}
}

// join connects, and leads or follows until the connection is lost or ctx ends.
func (g *gate) join(ctx context.Context) error {
	s, err := connect(ctx, g.process.config, readCommitted,
		"wait_timeout", "3", // the server ends the session of a leader whose process is stopped
	)
	if err != nil {
		return err
	}
	defer s.close()
	defer g.process.endWith(ctx, s, noTables)()
	if s.caps.WritersElsewhere() {
		return errElsewhere
	}
	// A session with SYSTEM_USER would wait for KILLs that never come, so it only follows.
	isSystemUser, err := s.isSystemUser()
	if err != nil {
		return err
	}
	alone := errNoLeader
	if isSystemUser {
		alone = errSystemUser
	}
	for tries := 0; ctx.Err() == nil; tries++ {
		var leads sql.NullInt64
		if !isSystemUser {
			if err := s.askAs(answer, "SELECT GET_LOCK(?, 0)", []any{g.names.leader()}, &leads); err != nil {
				return err
			}
		}
		if leads.Int64 == 1 {
			return g.lead(ctx, s)
		}
		followed, err := g.follow(ctx, s)
		if err != nil {
			return err
		}
		if followed {
			tries = 0
		}
		if tries > 0 { // the leader is about to begin, or another program holds the lock
			if tries == 20 { // after about a second
				g.why.Store(&alone)
				g.process.hint(g.number)
			}
			_ = server.Pause(ctx, min(time.Duration(tries)*5*time.Millisecond, time.Second))
		}
	}
	return context.Cause(ctx)
}

// follow waits for the leader's phases, one after the other, until it knows none. It reports whether it knew one.
func (g *gate) follow(ctx context.Context, s *session) (followed bool, err error) {
	leader, phase, seen, err := g.find(s)
	if err != nil || phase < 0 {
		return false, err
	}
	g.why.Store(nil)
	g.place.Store(&place{leader: leader})
	defer g.place.Store(nil)
	g.process.hint(g.number)
	wait := g.process.leaderWait + answer
	for ctx.Err() == nil {
		name, next := g.names.phase(leader, phase), g.names.phase(leader, phase+1)
		var got, holder sql.NullInt64
		err := s.askAs(wait+answer, "SELECT IF(SYSDATE(6) <= ?, GET_LOCK(?, ?), 2), RELEASE_LOCK(?), "+
			"SYSDATE(6) + INTERVAL ? MICROSECOND, IS_USED_LOCK(?)",
			[]any{seen, name, wait.Seconds(), name, fresh.Microseconds(), next}, &got, new(sql.NullInt64), &seen, &holder)
		if err != nil {
			return true, err
		}
		if !got.Valid {
			return true, errors.New("waiting: a KILL ended the wait")
		}
		if got.Int64 == 2 { // seen has passed: a phase of this name may already be a later one
			return true, nil
		}
		g.process.hint(g.number)
		switch {
		case got.Int64 == 0:
		case uint64(holder.Int64) == leader:
			phase++
		default:
			return true, nil
		}
	}
	return true, nil
}

// every is an SQL table of the numbers of all phases, 16 by 16.
var every = func() string {
	digits := "(SELECT 0 AS n"
	for i := 1; i*i < phases; i++ {
		digits += " UNION ALL SELECT " + strconv.Itoa(i)
	}
	digits += ")"
	return "(SELECT high.n * 16 + low.n AS n FROM " + digits + " high, " + digits + " low) phases"
}()

// find returns the leader and its first phase, or -1, and the server's time until which a follower may begin to wait for the phase.
func (g *gate) find(s *session) (leader uint64, phase int, until string, err error) {
	var id sql.Null[uint64]
	var held sql.NullString
	if err := s.askAs(answer, "SELECT IS_USED_LOCK(?)", []any{g.names.leader()}, &id); err != nil || !id.Valid {
		return 0, -1, "", err
	}
	leader = id.V
	err = s.ask(answer, "SELECT GROUP_CONCAT(n ORDER BY n) FROM "+every+" WHERE IS_USED_LOCK(CONCAT(?, n)) = ?",
		[]any{g.names.phasesOf(leader), leader}, &held)
	if err != nil || !held.Valid {
		return 0, -1, "", err
	}
	first, _, _ := strings.Cut(held.String, ",")
	if phase, err = strconv.Atoi(first); err != nil {
		return 0, -1, "", fmt.Errorf("waiting: %w", err)
	}
	// The phase before it may also be held: it may have the last number, or may have been taken after the query had read its
	// number. If neither is held any more, the leader has moved on, and a wait for this one ends at once.
	var before sql.Null[uint64]
	err = s.ask(answer, "SELECT NOW(6) + INTERVAL ? MICROSECOND, IS_USED_LOCK(?)",
		[]any{fresh.Microseconds(), g.names.phase(leader, phase-1)}, &until, &before)
	if err != nil {
		return 0, -1, "", err
	}
	if before.Valid && before.V == leader {
		phase = (phase + phases - 1) % phases
	}
	return leader, phase, until, nil
}

// lead waits for KILLs and broadcasts each one, until an error occurs or ctx ends.
func (g *gate) lead(ctx context.Context, s *session) error {
	if err := g.trial(ctx, s); err != nil {
		return err
	}
	rest := least
	for phase := 0; ctx.Err() == nil; phase++ {
		// Set the place before the statement is sent and before the hint, because the poller relies on it.
		g.why.Store(nil)
		g.place.Store(&place{leader: s.id, phase: g.names.phase(s.id, phase+1)})
		g.process.hint(g.number)
		runtime.Gosched() // let the poller run first, because a message waits for it
		g.delay()
		// The broadcast. It is repeated until no KILL interrupts it, because a KILL must not prevent any part of it.
		for phase > 0 {
			err := s.askAs(answer, "SELECT RELEASE_LOCK(?), RELEASE_LOCK(?)",
				[]any{g.names.wake(), g.names.phase(s.id, phase-1)}, new(sql.NullInt64), new(sql.NullInt64))
			if err == nil {
				break
			}
			if !server.Is(err, server.ErrQueryInterrupted) {
				return err
			}
		}
		// The leader rests here and not in the statement, so that the poller's statements do not compete with it.
		_ = server.Pause(ctx, rest)
		g.delay()
		sent := time.Now()
		if err := g.wait(s, phase); err != nil {
			return err
		}
		// If a writer ends the wait at once, writers are many: rest longer.
		if time.Since(sent) < atOnce {
			rest = min(2*rest, most)
		} else {
			rest = max(rest/2, least)
		}
	}
	return context.Cause(ctx)
}

func (g *gate) delay() {
	if before := g.before.Load(); before != nil {
		(*before)()
	}
}

// wait sends the leader's statement that a KILL ends. The statement takes only the locks that the session does not hold, and so
// completes what a KILL in the middle of the last one left undone.
func (g *gate) wait(s *session, phase int) error {
	const take = "IF(IS_USED_LOCK(?) <=> CONNECTION_ID(), 1, GET_LOCK(?, 0))"
	first, second := g.names.phase(s.id, phase), g.names.phase(s.id, phase+1)
	var one, two, pinned sql.NullInt64
	err := s.ask(g.process.leaderWait+answer,
		"SELECT "+take+", "+take+", CASE GET_LOCK(?, 0) WHEN 1 THEN GET_LOCK(?, ?) WHEN 0 THEN -1 END",
		[]any{first, first, second, second, g.names.wake(), *g.process.pin.Load(), int(g.process.leaderWait.Seconds())},
		&one, &two, &pinned)
	switch {
	case server.Is(err, server.ErrQueryInterrupted):
		return nil
	case err != nil:
		return err
	case one.Valid && one.Int64 == 0 || two.Valid && two.Int64 == 0 || pinned.Int64 == -1:
		return errForeignLock
	case pinned.Int64 == 1:
		return errPinLost
	}
	return nil
}

// trial checks that a KILL by the account of the triggers ends a wait of this session.
func (g *gate) trial(ctx context.Context, s *session) error {
	select {
	case <-g.process.pinned:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// Connect first, because the session waits only for a short time for the KILL that this connection asks for.
	if err := g.process.helper.with(ctx, (*session).ping); err != nil {
		return err
	}
	result := make(chan error, 1)
	go func() {
		var tested, waited sql.NullInt64
		err := s.ask(onTrial+answer, "SELECT GET_LOCK(?, 0), GET_LOCK(?, ?)",
			[]any{g.names.test(), *g.process.pin.Load(), int(onTrial.Seconds())}, &tested, &waited)
		switch {
		case server.Is(err, server.ErrQueryInterrupted):
			err = nil
		case err != nil:
		case tested.Valid && tested.Int64 == 0:
			err = errForeignLock
		case waited.Valid && waited.Int64 == 1:
			err = errPinLost
		case waited.Valid:
			err = errDenied
		}
		result <- err
	}()
	for pause := 2 * least; ; pause = min(2*pause, mostTrial) { // the first KILL may come too early
		if err := g.process.helper.wake(ctx, g.table); err != nil {
			_ = g.process.helper.kill(context.WithoutCancel(ctx), s)
			return errors.Join(err, <-result)
		}
		select {
		case err := <-result:
			if err != nil {
				return err
			}
			return s.askAs(answer, "SELECT RELEASE_LOCK(?)", []any{g.names.test()}, new(sql.NullInt64))
		case <-time.After(pause):
		}
	}
}
