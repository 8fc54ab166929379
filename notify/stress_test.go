package notify_test

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// The invariant: who reads the rows after a Wait and then waits again is woken by
// each ring that comes after that reading, however producers come and go and
// whatever is delayed. No row is left to a wait's bound.
//
// A violation shows because nothing else would wake anybody. A round is a burst of
// commits and rings, then one commit and one ring, and quiet until every listener
// has that row. The gate's topic has no table, so that a keeper's look finds bells
// and claims, and never a row. A listener that missed the ring sleeps on until the
// round's time is over: a lost wake. A wait counts if it was under way when the
// round's last row was sent to be committed, and found it.
func TestGateStress(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		figures := newStress(t, s, notify.GateLoss{Delay: seldomLate}).run(patience, func(f stressFigures) bool {
			if os.Getenv("MQNOTIFY_LONG") != "" {
				return f.sessions >= 500_000
			}
			return f.took >= 10*time.Second
		})
		require.Zero(t, figures.lost, "lost wakes")
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
	switch pick := rand.IntN(2000); {
	case pick == 0:
		<-time.After(300 * time.Millisecond)
	case pick < 100:
		<-time.After(rand.N(100 * time.Millisecond >> rand.IntN(14)))
	}
}

func late() { <-time.After(rand.N(20 * time.Millisecond)) }

const (
	stressProcesses = 48 // each is a DB
	stressListeners = 10 // of each
	stressProducers = 6
)

// stress is the listeners and producers of many processes.
type stress struct {
	stressBoard
	t         *testing.T
	producers []*stressProducer
	moved     int // the last round in which producers came and went
}

// stressFigures are what a stress found.
type stressFigures struct {
	rounds   int
	waits    int // of listeners, that could show a lost wake
	sessions int // the same of sessions: those of a process share one
	lost     int
	worst    time.Duration // from a round's last ring until all have its row
	took     time.Duration
}

func newStress(t *testing.T, server *mysqltest.Server, loss notify.GateLoss) *stress {
	t.Helper()
	s := &stress{t: t}
	config := server.Database(t)
	makeTopic(t, openDB(t, config))
	options := stressOptions.WithLoss(loss)
	for process := range stressProcesses {
		db := stressDB(t, config)
		for i := range stressListeners {
			l := &stressListener{board: &s.stressBoard, process: process, db: db, gate: notify.NewGate(db, stressTopic, options), read: s.known}
			if i == 0 {
				l.read = largest(db)
			}
			s.listeners = append(s.listeners, l)
		}
		if process < stressProducers/2 { // half of them beside listeners
			s.producers = append(s.producers, newStressProducer(db, options), newStressProducer(stressDB(t, config), options))
		}
	}
	return s
}

func stressDB(t *testing.T, config *mysql.Config) *notify.DB {
	db := openDB(t, config)
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
		require.NoError(s.t, p.join(ctx))
	}
	for begun := time.Now(); !enough(f) && !s.t.Failed(); f.took = time.Since(begun) {
		f.rounds++
		require.NoError(s.t, s.turn(ctx, limit, &f))
	}
	s.t.Logf("%d rounds in %v: %d waits over %d sessions; %d lost wakes, the worst wait %v",
		f.rounds, f.took.Round(time.Second), f.waits, f.sessions, f.lost, f.worst)
	return f
}

// turn makes one round. In some a producer leaves and another joins: during the
// burst, or after the last ring, which it has made.
func (s *stress) turn(ctx context.Context, limit time.Duration, f *stressFigures) error {
	moves := rand.IntN(20)
	if moves < 2 {
		s.moved = f.rounds
	}
	if err := s.burst(ctx, moves == 0); err != nil {
		return err
	}
	p := s.pick()
	defer p.busy.Unlock()
	round := s.round.Add(1)
	id, err := p.commit(ctx)
	if err != nil {
		return err
	}
	s.committed(id)
	all := s.expect(id)
	begun := time.Now()
	p.ring(id)
	if moves == 1 {
		p.leave()
	}
	arrived(ctx, all, limit)
	f.worst = max(f.worst, time.Since(begun))
	s.tally(round, f)
	if moves == 1 {
		if err := p.join(ctx); err != nil {
			return err
		}
	}
	for begun := time.Now(); !arrived(ctx, all, tick); { // the lost go on by another ring
		require.Less(s.t, time.Since(begun), patience, "listeners hang")
		p.ring(id)
	}
	return nil
}

// burst makes many commits and rings, some at once.
func (s *stress) burst(ctx context.Context, moves bool) error {
	var burst errgroup.Group
	if moves {
		p := s.pick()
		burst.Go(func() error {
			defer p.busy.Unlock()
			p.leave()
			pauseFor(ctx, rand.N(100*time.Millisecond>>rand.IntN(8)))
			return p.join(ctx)
		})
	}
	for range rand.IntN(3) {
		p, rows, gap := s.pick(), rand.IntN(1<<rand.IntN(6)), 4*time.Millisecond>>rand.IntN(4)
		burst.Go(func() error {
			defer p.busy.Unlock()
			for range rows {
				id, err := p.commit(ctx)
				if err != nil {
					return err
				}
				s.committed(id)
				p.ring(id)
				if rand.IntN(2) == 0 {
					pauseFor(ctx, rand.N(gap))
				}
			}
			return nil
		})
	}
	err := burst.Wait()
	pauseFor(ctx, rand.N(20*time.Millisecond>>rand.IntN(8)))
	return err
}

// pick is a producer that nobody uses; the caller unlocks it.
func (s *stress) pick() *stressProducer {
	for {
		if p := s.producers[rand.IntN(len(s.producers))]; p.busy.TryLock() {
			return p
		}
	}
}

// tally counts the waits that found the last row of a round, and the listeners that
// did not. Where producers have just come or gone, their bells may ring once more
// than they were told to: what those rings would mend is not counted.
func (s *stress) tally(round uint64, f *stressFigures) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sessions := make(map[int]bool)
	for _, l := range s.listeners {
		switch {
		case l.seen < s.last:
			f.lost++
		case l.began < round && f.rounds > s.moved+1:
			f.waits++
			sessions[l.process] = true
		}
	}
	f.sessions += len(sessions)
}
