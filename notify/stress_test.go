//go:build unix

package notify_test

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// The invariant: who reads the rows after a Wait and then waits again is woken by
// each ring that comes after that reading, whatever is delayed, however producers come
// and go, whosever session is killed, and whatever happens to the keeper's process. No
// row is left to a wait's bound: it is there within one failover.
//
// A violation shows because nothing else would wake anybody. A round is a burst of
// commits and rings, then one commit and one ring, and quiet until every listener
// has that row. The gate's topic has no table, so that a keeper's look finds bells
// and claims, and never a row. A listener that missed the ring sleeps on until the
// round's time is over: a lost wake.
func TestGateStress(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		stress := func(t *testing.T, s *mysqltest.Server) {
			all := newStress(t, s, notify.GateLoss{Delay: seldomLate})
			if !testing.Short() { // TestGateStressFaults has what happens to a guest
				all.invite(s)
			}
			figures := all.run(stressOptions.KeeperTimeout+20*time.Second, func(f stressFigures) bool {
				return f.took >= mysqltest.Size(time.Second, 6*time.Second, 8*time.Second) && f.waits >= mysqltest.Size(200, 2_000, 500_000)
			})
			require.Zero(t, figures.lost, "lost wakes")
		}
		stress(t, s)
		if !s.IsMariaDB() {
			t.Run("gtid", func(t *testing.T) { stress(t, s.Start(t, gtidFlags...)) })
		}
	})
}

// With too few phases, and with rows that are read too early, the same test loses
// wakes: it can fail.
func TestGateStressShowsLoss(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, loss := range map[string]notify.GateLoss{
			"two phases":     {Delay: late, Phases: 2, Old: true},
			"read too early": {Delay: late, Early: true},
		} {
			if testing.Short() && name != "two phases" {
				continue // one case shows that the test can fail
			}
			t.Run(name, func(t *testing.T) {
				figures := newStress(t, s, loss).run(2*time.Second, func(f stressFigures) bool {
					return f.lost > 0 || f.took > time.Minute
				})
				require.NotZero(t, figures.lost, "nothing was lost: the test shows nothing")
			})
		}
	})
}

// seldomLate is what comes between knowing a phase and waiting for it: mostly
// nothing, else of any scale up to 100 ms, and seldom more than a phase is believed
// for.
func seldomLate() {
	switch pick := random().IntN(2000); {
	case pick == 0:
		<-time.After(300 * time.Millisecond)
	case pick < 40:
		<-time.After(within(100 * time.Millisecond >> random().IntN(14)))
	}
}

func late() { <-time.After(within(20 * time.Millisecond)) }

const (
	stressProcesses = 64 // each is a DB
	stressListeners = 8  // of each
	stressProducers = 6
)

// stress is the listeners and producers of many processes.
type stress struct {
	stressBoard
	t         *testing.T
	admin     *sql.DB
	config    *mysql.Config
	producers []*stressProducer
	guest     *stressGuest // nil if there is none
	moved     int          // the last round with a move
	what      string       // last happened to the guest
}

// stressFigures are what a stress found.
type stressFigures struct {
	rounds   int
	waits    int // of listeners, that could show a lost wake
	sessions int // the same of sessions: those of a process share one
	lost     int
	worst    map[string]time.Duration // from a round's last commit until all have its row, by what last happened to the guest
	moves    map[string]int           // and how often it did
	took     time.Duration
}

// move is what else happens in a round.
type move int

const (
	none         move = iota
	replaced          // a producer leaves and another comes, during the burst
	leaves            // the one who made the last ring leaves right after it
	keeperKilled      // its session
	killed            // any session
	hosted            // something happens to the guest
)

// next is what else happens in a round: mostly nothing.
func (s *stress) next(round int) move {
	switch {
	case s.guest != nil && (round == 1 || random().IntN(15) == 0):
		return hosted
	case random().IntN(10) == 0:
		return replaced + move(random().IntN(int(hosted-replaced)))
	}
	return none
}

func newStress(t *testing.T, server *mysqltest.Server, loss notify.GateLoss) *stress {
	t.Helper()
	config := server.Database(t)
	s := &stress{t: t, admin: server.Admin(t), config: config}
	makeTopic(t, openDB(t, config))
	options := stressOptions.WithLoss(loss)
	for process := range mysqltest.Size(stressProcesses/4, stressProcesses, stressProcesses) {
		db := stressDB(t, config)
		for i := range mysqltest.Size(stressListeners/2, stressListeners, stressListeners) {
			l := &stressListener{board: &s.stressBoard, process: process, db: db, gate: notify.NewGate(db, stressTopic, options), read: s.known}
			if i == 0 {
				l.read = largest(db)
			}
			s.listeners = append(s.listeners, l)
		}
	}
	for range stressProducers {
		s.producers = append(s.producers, newStressProducer(stressDB(t, config), options))
	}
	return s
}

func stressDB(t *testing.T, config *mysql.Config) *notify.DB {
	db, err := notify.OpenConfig(config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() }) // it tells of a connection that was killed
	db.Pool().SetMaxOpenConns(2)
	return db
}

// run makes rounds until enough says so. Who has not seen a round's last row within
// limit has lost a wake.
func (s *stress) run(limit time.Duration, enough func(stressFigures) bool) (f stressFigures) {
	ctx, stop := context.WithCancel(s.t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for _, l := range s.listeners {
		running.Go(func() {
			if err := l.run(ctx); ctx.Err() == nil {
				s.t.Errorf("listener: %v", err)
			}
		})
	}
	for _, p := range s.producers {
		defer p.leave()
		p.join(ctx)
	}
	f.worst, f.moves = make(map[string]time.Duration), make(map[string]int)
	for begun := time.Now(); !enough(f) && !s.t.Failed(); f.took = time.Since(begun) {
		f.rounds++
		s.turn(ctx, limit, &f)
	}
	s.t.Logf("%d rounds in %v: %d waits over %d sessions; %d lost wakes; %d rows rang themselves",
		f.rounds, f.took.Round(time.Second), f.waits, f.sessions, f.lost, s.inserts.Load())
	for _, what := range slices.Sorted(maps.Keys(f.worst)) {
		s.t.Logf("%-20s %4d times, the worst wait %v", what, f.moves[what], f.worst[what].Round(time.Millisecond))
	}
	return f
}

// turn makes one round.
func (s *stress) turn(ctx context.Context, limit time.Duration, f *stressFigures) {
	moves := s.next(f.rounds)
	if moves != none {
		s.moved = f.rounds
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	switch {
	case moves == keeperKilled || moves == killed:
		beside.Go(func() { s.kill(ctx, moves) })
	case moves == hosted:
		s.what = s.guest.move(ctx, &beside)
		f.moves[s.what]++
	case s.moved < f.rounds-1:
		s.what = "nothing"
	}
	s.burst(ctx, moves)

	p := s.pick()
	defer p.busy.Unlock()
	round := s.round.Add(1)
	begun, rings := time.Now(), s.rings()
	id := p.send(ctx, &s.stressBoard)
	all := s.expect(id)
	if moves == leaves {
		p.leave()
	}
	arrived(ctx, all, limit)
	f.worst[s.what] = max(f.worst[s.what], time.Since(begun))
	s.tally(f, round, s.rings()-rings)
	if moves == leaves {
		p.join(ctx)
	}
	for begun := time.Now(); !arrived(ctx, all, tick); { // the lost go on by another ring
		require.Less(s.t, time.Since(begun), patience, "listeners hang")
		p.ring(id)
	}
}

// burst makes many commits and rings, some at once.
func (s *stress) burst(ctx context.Context, moves move) {
	var burst sync.WaitGroup
	if moves == replaced {
		p := s.pick()
		burst.Go(func() {
			defer p.busy.Unlock()
			p.leave()
			pauseFor(ctx, within(100*time.Millisecond>>random().IntN(8)))
			p.join(ctx)
		})
	}
	for range random().IntN(3) {
		p, rows, gap := s.pick(), random().IntN(1<<random().IntN(5)), 4*time.Millisecond>>random().IntN(4)
		burst.Go(func() {
			defer p.busy.Unlock()
			for range rows {
				p.send(ctx, &s.stressBoard)
				if random().IntN(2) == 0 {
					pauseFor(ctx, within(gap))
				}
			}
		})
	}
	burst.Wait()
	pauseFor(ctx, within(20*time.Millisecond>>random().IntN(8)))
}

// pick is a producer that nobody uses; the caller unlocks it.
func (s *stress) pick() *stressProducer {
	for {
		if p := s.producers[random().IntN(len(s.producers))]; p.busy.TryLock() {
			return p
		}
	}
}

// kill kills a session, or its statement.
func (s *stress) kill(ctx context.Context, whose move) {
	pauseFor(ctx, within(40*time.Millisecond))
	query, args := "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = ? ORDER BY RAND() LIMIT 1", []any{s.config.DBName}
	if whose == keeperKilled {
		keeper, _ := notify.GateLocks(s.config.DBName, stressTopic)
		query, args = "SELECT COALESCE(IS_USED_LOCK(?), 0)", []any{keeper}
	}
	var id uint64
	if err := s.admin.QueryRowContext(ctx, query, args...).Scan(&id); err != nil {
		s.t.Errorf("kill: %v", err)
	}
	killSession(ctx, s.admin, id)
}

// rings is how often the gate was rung.
func (s *stress) rings() (n int) {
	for _, p := range s.producers {
		n += p.rings()
	}
	if s.guest != nil {
		n += s.guest.rings()
	}
	return n
}

// tally counts the listeners that have not seen the last row of a round, and the
// waits that found it: of those that could show a lost wake. They were under way
// when the row was sent to be committed, and no second ring came that would have
// mended the loss of the first.
func (s *stress) tally(f *stressFigures, round uint64, rings int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sessions := make(map[int]bool)
	for _, l := range s.listeners {
		switch {
		case l.seen < s.last:
			f.lost++
		case l.began < round && rings == 1 && s.moved < f.rounds:
			f.waits++
			sessions[l.process] = true
		}
	}
	f.sessions += len(sessions)
}
