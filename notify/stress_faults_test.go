//go:build unix

package notify_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// The invariant: whoever dies, is stopped or is cut off, and whenever, every listener
// that lives has each row whose producer lives within one failover, which a keeper
// that stopped without dying makes as long as KeeperTimeout. Whoever goes on later
// has all rows too, and its own reach the others.
//
// It shows as TestGateStress does: in a topic without a table nothing but rings wakes,
// and after the one that is waited for it is quiet.
func TestGateStressFaults(t *testing.T) {
	faults := func(t *testing.T, s *mysqltest.Server, chosen []stressFault) {
		f := newFaults(t, s)
		for _, fault := range chosen {
			f.suffer(fault)
		}
		for begun := time.Now(); mysqltest.Long() && time.Since(begun) < 5*time.Minute; {
			one, other := stressFaults[random().IntN(len(stressFaults))], stressFaults[random().IntN(len(stressFaults))]
			if !other.keeps && (!one.alone() || other.part == listens) {
				f.suffer(one, other)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(f.worst)) {
			t.Logf("%-40s %v", name, f.worst[name].Round(time.Millisecond))
		}
		t.Logf("%d rows, %d lost wakes", f.rows, f.lost)
		assert.Zero(t, f.lost, "lost wakes")
	}
	if mysqltest.Long() {
		mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) { faults(t, s, stressFaults) })
		return
	}
	var shares [3][]stressFault // each waits for timeouts, and none depends on the server
	for i, fault := range stressFaults {
		switch {
		case !testing.Short():
			shares[i%3] = append(shares[i%3], fault)
		case fault.quick:
			shares[0] = append(shares[0], fault)
		}
	}
	mysqltest.Rotate(t, shares[:mysqltest.Size(1, 3, 3)], faults)
}

// stressFault is what happens to a process.
type stressFault struct {
	name  string
	keeps bool // the process keeps the gate; else it has a bell, or listens alone if its part is that
	part  stressPart
	away  bool // it is not expected to have the rows meanwhile
	begin func(f *faults, v *victim)
	end   func(v *victim) // nil when the process does not go on
	quick bool            // no timeout is waited for, and -short has it too
}

// alone tells whether the keeper is no producer: one that came would take the gate
// from it.
func (f stressFault) alone() bool { return f.keeps && f.part == listens }

type stressPart int

const (
	produces stressPart = 1 << iota
	listens
)

var stressFaults = []stressFault{
	{"the keeper is killed", true, produces, true, (*faults).killProcess, nil, true},
	{"the keeper, a listener, is killed", true, listens, true, (*faults).killProcess, nil, true},
	{"a producer is killed", false, produces, true, (*faults).killProcess, nil, false},
	{"a listener is killed", false, listens, true, (*faults).killProcess, nil, true},
	{"the keeper is stopped", true, produces | listens, true, (*faults).stopProcess, (*victim).resume, false},
	{"the keeper, a listener, is stopped", true, listens, true, (*faults).stopProcess, (*victim).resume, false},
	{"a producer is stopped", false, produces | listens, true, (*faults).stopProcess, (*victim).resume, false},
	{"a listener is stopped", false, listens, true, (*faults).stopProcess, (*victim).resume, false},
	{"the keeper's TCP is dropped", true, produces | listens, true, (*faults).drop, (*victim).up, false},
	{"a producer's TCP is dropped", false, produces | listens, true, (*faults).drop, (*victim).up, false},
	{"a listener's TCP is dropped", false, listens, true, (*faults).drop, (*victim).up, false},
	{"the keeper's TCP is frozen", true, produces | listens, true, (*faults).freeze, (*victim).thaw, false},
	{"a producer's TCP is frozen", false, produces | listens, true, (*faults).freeze, (*victim).thaw, false},
	{"a listener's TCP is frozen", false, listens, true, (*faults).freeze, (*victim).thaw, false},
	{"KILL of sessions of the keeper's", true, produces | listens, false, (*faults).killSessions, goOn, true},
	{"KILL of sessions of a listening keeper's", true, listens, false, (*faults).killSessions, goOn, false},
	{"KILL of sessions of a producer's", false, produces | listens, false, (*faults).killSessions, goOn, false},
	{"KILL of sessions of a listener's", false, listens, false, (*faults).killSessions, goOn, false},
	{"KILL of any sessions", false, listens, false, (*faults).killAny, goOn, false},
}

// faults are the listeners and producers to whom nothing happens, or nothing but KILL,
// and what was found.
type faults struct {
	stressBoard
	t       *testing.T
	server  *mysqltest.Server
	admin   *sql.DB
	keeper  string // the lock
	claim   string // likewise
	root    *mysql.Config
	config  *mysql.Config // of the test's own process
	anchors []*stressProducer
	crowd   []*stressListener // of the test's own process
	deafen  func()            // ends their listening
	victims []*victim

	rows, lost int
	worst      map[string]time.Duration
}

// victim is the process to which something happens.
type victim struct {
	*stressProcess
	fault stressFault
	proxy *mysqltest.Proxy
}

func newFaults(t *testing.T, s *mysqltest.Server) *faults {
	f := &faults{t: t, server: s, admin: s.Admin(t), root: s.Database(t), worst: make(map[string]time.Duration)}
	makeTopic(t, openDB(t, f.root))
	f.keeper, f.claim = notify.GateLocks(f.root.DBName, stressTopic)
	f.config = f.account()
	for process := range 8 {
		db := stressDB(t, f.config)
		for range 2 {
			f.listeners = append(f.listeners, &stressListener{board: &f.stressBoard, process: process, db: db, read: largest(db)})
		}
	}
	f.crowd = slices.Clone(f.listeners)
	f.listen()
	t.Cleanup(func() { f.deafen() })
	for range 2 {
		p := newStressProducer(stressDB(t, f.config), stressOptions)
		f.anchors = append(f.anchors, p)
		p.join(f.t.Context())
		t.Cleanup(p.leave)
	}
	return f
}

// account is an account for a process: it tells whose session is whose.
func (f *faults) account() *mysql.Config {
	return f.server.User(f.t, f.root, "ALL ON "+f.root.DBName+".*")
}

// suffer lets faults happen at once, each to a process of its own.
func (f *faults) suffer(all ...stressFault) {
	if f.t.Failed() {
		return
	}
	name := all[0].name
	if len(all) > 1 {
		name += ", and more"
	}
	for _, fault := range all {
		f.start(fault)
	}
	if !all[0].alone() {
		f.join()
		f.publish("(nothing happens)") // all is settled
	}
	if all[0].keeps {
		require.Equal(f.t, f.victims[0].user, f.user(f.keeper), "%s: who keeps the gate", name)
	}
	var running sync.WaitGroup
	for _, v := range f.victims {
		running.Go(func() {
			pauseFor(f.t.Context(), within(20*time.Millisecond))
			f.setAway(v.fault.away, v.listens)
			v.fault.begin(f, v)
		})
	}
	if !all[0].alone() {
		f.burst()
		f.publish(name)
	}
	running.Wait()
	f.publish(name)
	for _, v := range f.victims {
		if v.fault.end != nil {
			v.fault.end(v)
			f.setAway(false, v.listens)
		}
	}
	f.publish(name + ": over")
	for _, v := range f.victims {
		if v.fault.end != nil && v.fault.part&produces != 0 {
			f.measure(name+": its row", v.publish(), func(uint64) {})
			f.setAway(true, v.listens)
			v.order("join") // it may not have a bell again yet, with which a crash rings
			f.measure(name+": its last row", v.publish(), func(uint64) { v.kill() })
		}
	}
	for _, v := range f.victims {
		f.setAway(true, v.listens)
		v.kill()
	}
	f.victims = nil
	f.join()
}

// join makes the producers join to whom nothing happens.
func (f *faults) join() {
	for _, p := range f.anchors {
		if p.gate == nil {
			p.join(f.t.Context())
		}
	}
}

// listen makes the listeners of the test's own process listen.
func (f *faults) listen() {
	ctx, stop := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	f.deafen = func() {
		stop()
		running.Wait()
		f.setAway(true, f.crowd...)
	}
	for _, l := range f.crowd {
		l.gate = notify.NewGate(l.db, stressTopic, stressOptions)
	}
	for _, l := range f.crowd {
		_, _ = persistently(f.t.Context(), l.gate.Head) // what comes from now on wakes it
		running.Go(func() {
			if err := l.run(ctx); ctx.Err() == nil {
				f.t.Errorf("listener: %v", err)
			}
		})
	}
	f.setAway(false, f.crowd...)
}

// start starts the process to which the fault is to happen, and lets it keep the gate
// if that is its part: a producer claims it, a listener keeps it when it is the
// only one.
func (f *faults) start(fault stressFault) {
	v := &victim{fault: fault, proxy: f.server.Proxy(f.t)}
	var l *stressListener
	if fault.part&listens != 0 {
		l = &stressListener{board: &f.stressBoard}
		f.mu.Lock()
		f.listeners = append(f.listeners, l)
		f.mu.Unlock()
	}
	if fault.keeps {
		for _, p := range f.anchors {
			p.leave()
		}
		f.deafen()
	}
	v.stressProcess = startStressProcess(f.t, v.proxy.Config(f.account()), l)
	f.victims = append(f.victims, v)
	if fault.part&produces != 0 {
		v.order("join")
	}
	if fault.keeps {
		if fault.part&produces != 0 {
			v.publish() // whose ring claims the gate, if it was kept before that
		}
		require.Eventually(f.t, func() bool {
			return f.user(f.keeper) == v.user && (fault.part&produces == 0 || f.claimed())
		}, patience, tick)
		f.listen()
	}
}

// setAway says whether the listeners must have the rows.
func (f *faults) setAway(away bool, listeners ...*stressListener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range listeners {
		if l != nil {
			l.away = away
		}
	}
	f.check()
}

// burst makes many commits and rings.
func (f *faults) burst() {
	for range random().IntN(30) {
		p := f.anchors[random().IntN(len(f.anchors))]
		p.ring(p.commit(f.t.Context()))
		pauseFor(f.t.Context(), within(4*time.Millisecond>>random().IntN(4)))
	}
}

// publish commits one row, rings once, and waits until everybody has it.
func (f *faults) publish(what string) {
	p := f.anchors[random().IntN(len(f.anchors))]
	f.measure(what, p.commit(f.t.Context()), p.ring)
}

// measure waits until everybody has the row that ring announces.
func (f *faults) measure(what string, id uint64, ring func(id uint64)) {
	all := f.expect(id)
	begun := time.Now()
	ring(id)
	if !arrived(f.t.Context(), all, stressOptions.KeeperTimeout+20*time.Second) {
		f.t.Logf("%s: row %d is lost to %v; the keeper is %s", what, id, f.who(id), f.user(f.keeper))
		f.lost += len(f.who(id))
		for begun := time.Now(); !arrived(f.t.Context(), all, time.Second); {
			require.Less(f.t, time.Since(begun), patience, "listeners hang")
			ring(id)
		}
	}
	f.worst[what] = max(f.worst[what], time.Since(begun))
	f.rows++
}

// who are those that have not seen the row.
func (f *faults) who(id uint64) (missing []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, l := range f.listeners {
		if !l.away && l.seen < id {
			missing = append(missing, i)
		}
	}
	return missing
}

// holder is the session that holds a lock, 0 if none does.
func (f *faults) holder(lock string) (id uint64) {
	require.NoError(f.t, f.admin.QueryRowContext(f.t.Context(), "SELECT COALESCE(IS_USED_LOCK(?), 0)", lock).Scan(&id))
	return id
}

// user is the account whose session holds a lock.
func (f *faults) user(lock string) (user string) {
	err := f.admin.QueryRowContext(f.t.Context(), "SELECT USER FROM information_schema.PROCESSLIST WHERE ID = ?", f.holder(lock)).Scan(&user)
	if !errors.Is(err, sql.ErrNoRows) {
		require.NoError(f.t, err)
	}
	return user
}

// claimed tells whether the keeper holds the claim too, and so stays it.
func (f *faults) claimed() (same bool) {
	const query = "SELECT COALESCE(IS_USED_LOCK(?) = IS_USED_LOCK(?), 0)"
	require.NoError(f.t, f.admin.QueryRowContext(f.t.Context(), query, f.keeper, f.claim).Scan(&same))
	return same
}

func (f *faults) killProcess(v *victim) { v.kill() }
func (f *faults) stopProcess(v *victim) { v.stop() }
func (f *faults) drop(v *victim)        { v.down() }
func (f *faults) freeze(v *victim)      { v.freeze() }

func (v *victim) stop()   { v.signal(syscall.SIGSTOP) }
func (v *victim) resume() { v.signal(syscall.SIGCONT) }
func (v *victim) down()   { v.proxy.Down() }
func (v *victim) up()     { v.proxy.Up() }
func (v *victim) freeze() { v.proxy.Freeze() }
func (v *victim) thaw()   { v.proxy.Thaw() }
func goOn(*victim)        {}

func (v *victim) signal(signal os.Signal) { require.NoError(v.t, v.command.Process.Signal(signal)) }

// killSessions kills some sessions of the process, the keeper's first.
func (f *faults) killSessions(v *victim) {
	if v.fault.keeps {
		killSession(f.t.Context(), f.admin, f.holder(f.keeper))
	}
	f.killOf(v.user, 3)
}

// killAny kills sessions of those to whom nothing else happens.
func (f *faults) killAny(*victim) { f.killOf(f.config.User, 8) }

func (f *faults) killOf(user string, sessions int) {
	for range sessions {
		var id uint64
		const one = "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = ? ORDER BY RAND() LIMIT 1"
		if err := f.admin.QueryRowContext(f.t.Context(), one, user).Scan(&id); err == nil {
			killSession(f.t.Context(), f.admin, id)
		}
		pauseFor(f.t.Context(), within(10*time.Millisecond))
	}
}
