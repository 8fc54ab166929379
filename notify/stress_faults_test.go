//go:build unix

package notify_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
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
	eachAtOnce(t, func(t *testing.T, s *mysqltest.Server) {
		f := newFaults(t, s)
		for _, fault := range stressFaults {
			f.suffer(fault)
		}
		for begun := time.Now(); os.Getenv("MQNOTIFY_LONG") != "" && time.Since(begun) < 5*time.Minute; {
			picks := rand.Perm(len(stressFaults))
			f.suffer(stressFaults[picks[0]], stressFaults[picks[1]])
		}
		for _, name := range slices.Sorted(maps.Keys(f.worst)) {
			t.Logf("%-40s %v", name, f.worst[name].Round(time.Millisecond))
		}
		t.Logf("%d rows, %d lost wakes", f.rows, f.lost)
		assert.Zero(t, f.lost, "lost wakes")
	})
}

// stressFault is what happens to a process.
type stressFault struct {
	name  string
	keeps bool // the process keeps the gate; else it has a bell, or listens alone if its part is that
	part  stressPart
	away  bool // it is not expected to have the rows meanwhile
	begin func(f *faults, v *victim)
	end   func(v *victim) // nil when the process does not go on
}

type stressPart int

const (
	produces stressPart = 1 << iota
	listens
)

var stressFaults = []stressFault{
	{"the keeper is killed", true, produces, true, (*faults).killProcess, nil},
	{"the keeper, a listener, is killed", true, listens, true, (*faults).killProcess, nil},
	{"a producer is killed", false, produces, true, (*faults).killProcess, nil},
	{"a listener is killed", false, listens, true, (*faults).killProcess, nil},
	{"the keeper is stopped", true, produces | listens, true, (*faults).stopProcess, (*victim).resume},
	{"the keeper, a listener, is stopped", true, listens, true, (*faults).stopProcess, (*victim).resume},
	{"a producer is stopped", false, produces | listens, true, (*faults).stopProcess, (*victim).resume},
	{"a listener is stopped", false, listens, true, (*faults).stopProcess, (*victim).resume},
	{"the keeper's TCP is dropped", true, produces | listens, true, (*faults).drop, (*victim).up},
	{"a producer's TCP is dropped", false, produces | listens, true, (*faults).drop, (*victim).up},
	{"a listener's TCP is dropped", false, listens, true, (*faults).drop, (*victim).up},
	{"the keeper's TCP is frozen", true, produces | listens, true, (*faults).freeze, (*victim).thaw},
	{"a producer's TCP is frozen", false, produces | listens, true, (*faults).freeze, (*victim).thaw},
	{"a listener's TCP is frozen", false, listens, true, (*faults).freeze, (*victim).thaw},
	{"KILL of sessions of the keeper's", true, produces | listens, false, (*faults).killSessions, goOn},
	{"KILL of sessions of a listening keeper's", true, listens, false, (*faults).killSessions, goOn},
	{"KILL of sessions of a producer's", false, produces | listens, false, (*faults).killSessions, goOn},
	{"KILL of sessions of a listener's", false, listens, false, (*faults).killSessions, goOn},
	{"KILL of any sessions", false, listens, false, (*faults).killAny, goOn},
}

// faults are the listeners and producers to whom nothing happens, or nothing but KILL,
// and what was found.
type faults struct {
	stressBoard
	t       *testing.T
	ctx     context.Context //nolint:containedctx // the test's, which it is a part of
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
	fault   stressFault
	proxy   *mysqltest.Proxy
	listens *stressListener // nil if it does not
}

func newFaults(t *testing.T, s *mysqltest.Server) *faults {
	f := &faults{t: t, server: s, admin: s.Admin(t), root: s.Database(t), worst: make(map[string]time.Duration)}
	makeTopic(t, openDB(t, f.root))
	f.keeper, f.claim = notify.GateLocks(f.root.DBName, stressTopic)
	f.config, f.ctx = f.account(), t.Context()
	for process := range 8 {
		db := stressDB(t, f.config)
		for range 2 {
			f.listeners = append(f.listeners, &stressListener{board: &f.stressBoard, process: process, db: db, read: func(ctx context.Context) (uint64, error) {
				return persistently(ctx, largest(db))
			}})
		}
	}
	f.crowd = slices.Clone(f.listeners)
	f.listen()
	t.Cleanup(func() { f.deafen() })
	for range 2 {
		p := newStressProducer(stressDB(t, f.config), stressOptions)
		f.anchors = append(f.anchors, p)
		require.NoError(t, p.join(f.ctx))
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
	var names []string
	for i, fault := range all {
		names = append(names, fault.name)
		f.start(fault, fault.keeps && i == 0)
	}
	name := strings.Join(names, " and ")
	alone := all[0].keeps && all[0].part&produces == 0 // a producer would take the gate from it
	if !alone {
		f.publish("(nothing happens)") // all is settled
	}
	if all[0].keeps {
		require.Equal(f.t, f.victims[0].user, f.user(f.keeper), "%s: who keeps the gate", name)
	}
	var running sync.WaitGroup
	for _, v := range f.victims {
		running.Go(func() {
			pauseFor(f.ctx, rand.N(20*time.Millisecond))
			f.setAway(v.fault.away, v.listens)
			v.fault.begin(f, v)
		})
	}
	if !alone {
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
		}
	}
	for _, v := range f.victims {
		f.setAway(true, v.listens)
		v.kill()
	}
	f.victims = nil
	for _, p := range f.anchors {
		if p.gate == nil {
			require.NoError(f.t, p.join(f.ctx))
		}
	}
}

// listen makes the listeners of the test's own process listen.
func (f *faults) listen() {
	ctx, stop := context.WithCancel(f.ctx)
	var running sync.WaitGroup
	f.deafen = func() {
		stop()
		running.Wait()
		f.setAway(true, f.crowd...)
	}
	for _, l := range f.crowd {
		l.gate = notify.NewGate(l.db, stressTopic, stressOptions)
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
func (f *faults) start(fault stressFault, keeps bool) {
	v := &victim{fault: fault, proxy: f.server.Proxy(f.t)}
	if fault.part&listens != 0 {
		v.listens = &stressListener{board: &f.stressBoard}
		f.mu.Lock()
		f.listeners = append(f.listeners, v.listens)
		f.mu.Unlock()
	}
	if keeps {
		for _, p := range f.anchors {
			p.leave()
		}
		f.deafen()
	}
	v.stressProcess = startStressProcess(f.t, v.proxy.Config(f.account()), v.listens)
	f.victims = append(f.victims, v)
	if fault.part&produces != 0 {
		v.order("join")
	}
	if keeps {
		if fault.part&produces != 0 {
			v.publish() // whose ring claims the gate, if it was kept before that
		}
		require.Eventually(f.t, func() bool {
			return f.user(f.keeper) == v.user && (fault.part&produces == 0 || f.claimed())
		}, patience, tick)
		f.listen()
	}
	if fault.part&produces != 0 || !keeps { // no producer lives beside a keeper that listens
		for _, p := range f.anchors {
			if p.gate == nil {
				require.NoError(f.t, p.join(f.ctx))
			}
		}
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
	for range rand.IntN(30) {
		p := f.anchors[rand.IntN(len(f.anchors))]
		p.ring(f.commit(p))
		pauseFor(f.ctx, rand.N(4*time.Millisecond>>rand.IntN(4)))
	}
}

func (f *faults) commit(p *stressProducer) uint64 {
	id, err := persistently(f.ctx, p.commit)
	require.NoError(f.t, err)
	return id
}

// publish commits one row, rings once, and waits until everybody has it.
func (f *faults) publish(what string) {
	p := f.anchors[rand.IntN(len(f.anchors))]
	f.measure(what, f.commit(p), p.ring)
}

// measure waits until everybody has the row that ring announces.
func (f *faults) measure(what string, id uint64, ring func(id uint64)) {
	all := f.expect(id)
	begun := time.Now()
	ring(id)
	if !arrived(f.ctx, all, stressOptions.KeeperTimeout+10*time.Second) {
		f.t.Logf("%s: row %d is lost to %v; the keeper is %s", what, id, f.who(id), f.user(f.keeper))
		f.lost += len(f.who(id))
		for begun := time.Now(); !arrived(f.ctx, all, time.Second); {
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
	require.NoError(f.t, f.admin.QueryRowContext(f.ctx, "SELECT COALESCE(IS_USED_LOCK(?), 0)", lock).Scan(&id))
	return id
}

// user is the account whose session holds a lock.
func (f *faults) user(lock string) (user string) {
	err := f.admin.QueryRowContext(f.ctx, "SELECT USER FROM information_schema.PROCESSLIST WHERE ID = ?", f.holder(lock)).Scan(&user)
	if !errors.Is(err, sql.ErrNoRows) {
		require.NoError(f.t, err)
	}
	return user
}

// claimed tells whether the keeper holds the claim too, and so stays it.
func (f *faults) claimed() (same bool) {
	const query = "SELECT COALESCE(IS_USED_LOCK(?) = IS_USED_LOCK(?), 0)"
	require.NoError(f.t, f.admin.QueryRowContext(f.ctx, query, f.keeper, f.claim).Scan(&same))
	return same
}

func (f *faults) killProcess(v *victim) { v.kill() }
func (f *faults) stopProcess(v *victim) { v.signal(syscall.SIGSTOP) }
func (v *victim) resume()               { v.signal(syscall.SIGCONT) }
func (f *faults) drop(v *victim)        { v.proxy.Down() }
func (v *victim) up()                   { v.proxy.Up() }
func (f *faults) freeze(v *victim)      { v.proxy.Freeze() }
func (v *victim) thaw()                 { v.proxy.Thaw() }
func goOn(*victim)                      {}

func (v *victim) signal(signal os.Signal) { require.NoError(v.t, v.command.Process.Signal(signal)) }

// killSessions kills some sessions of the process, the keeper's first.
func (f *faults) killSessions(v *victim) {
	if v.fault.keeps {
		f.killSession(f.holder(f.keeper))
	}
	f.killOf(v.user, 3)
}

// killAny kills sessions of those to whom nothing else happens.
func (f *faults) killAny(*victim) { f.killOf(f.config.User, 8) }

func (f *faults) killOf(user string, sessions int) {
	for range sessions {
		var id uint64
		const one = "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = ? ORDER BY RAND() LIMIT 1"
		if err := f.admin.QueryRowContext(f.ctx, one, user).Scan(&id); err == nil {
			f.killSession(id)
		}
		pauseFor(f.ctx, rand.N(10*time.Millisecond))
	}
}

// killSession kills a session, or its statement, if it is still there.
func (f *faults) killSession(id uint64) {
	what := []string{"CONNECTION", "QUERY"}[rand.IntN(2)]
	_, _ = f.admin.ExecContext(f.ctx, fmt.Sprintf("KILL %s %d", what, id))
}
