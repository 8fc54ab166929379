//go:build unix

package notify_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// stressGuest is a process of its own, which keeps the gate that the listeners of a
// stress wait at and its producers ring bells for, until something happens to it that
// can happen to a process alone. When it goes on, it still takes itself for the keeper.
type stressGuest struct {
	*stress
	account *mysql.Config
	proxy   *mysqltest.Proxy

	mu     sync.Mutex
	victim *victim     // nil while there is none
	struck *guestFault // nil while it is well
}

type guestFault struct {
	name       string
	begin, end func(*victim)
}

var guestFaults = []guestFault{
	{"kill -9", (*victim).kill, nil},
	{"SIGSTOP", (*victim).stop, (*victim).resume},
	{"TCP dropped", (*victim).down, (*victim).up},
	{"TCP frozen", (*victim).freeze, (*victim).thaw},
}

// invite adds a guest to the stress.
func (s *stress) invite(server *mysqltest.Server) {
	s.guest = &stressGuest{
		stress: s, account: server.User(s.t, s.config, "ALL ON "+s.config.DBName+".*"), proxy: server.Proxy(s.t),
	}
}

// move lets the guest come, keep the gate once more, suffer or go on: at once, or
// beside the round's burst. It tells which.
func (g *stressGuest) move(ctx context.Context, beside *sync.WaitGroup) string {
	switch fault := g.struck; {
	case g.victim == nil:
		g.victim = &victim{stressProcess: startStressProcess(g.t, g.proxy.Config(g.account), nil), proxy: g.proxy}
		g.keep(ctx)
		return "comes"
	case fault != nil:
		beside.Go(func() { g.goOn(ctx) })
		return fault.name + ": over"
	case !g.keeps(ctx) && random().IntN(4) > 0:
		g.keep(ctx)
		return "keeps again"
	default:
		fault = &guestFaults[random().IntN(len(guestFaults))]
		beside.Go(func() { g.suffer(ctx, fault) })
		return fault.name
	}
}

// keep makes the guest the keeper: every other producer leaves, and comes again.
func (g *stressGuest) keep(ctx context.Context) {
	for _, p := range g.producers {
		p.busy.Lock()
		defer p.busy.Unlock()
		p.leave()
	}
	g.victim.order("join")
	g.committed(g.victim.publish()) // its ring claims the gate
	require.Eventually(g.t, func() bool { return g.keeps(ctx) }, patience, tick, "the guest does not come to keep the gate")
	for _, p := range g.producers {
		p.join(ctx)
	}
}

// keeps tells whether the guest keeps the gate and will not give it away.
func (g *stressGuest) keeps(ctx context.Context) bool {
	const holder = "SELECT COALESCE(MAX(USER), '') FROM information_schema.PROCESSLIST WHERE ID = IS_USED_LOCK(?)"
	keeper, claim := notify.GateLocks(g.config.DBName, stressTopic)
	users := make([]string, 2)
	for i, lock := range []string{keeper, claim} {
		require.NoError(g.t, g.admin.QueryRowContext(ctx, holder, lock).Scan(&users[i]))
	}
	return slices.Equal(users, []string{g.account.User, g.account.User})
}

func (g *stressGuest) suffer(ctx context.Context, fault *guestFault) {
	pauseFor(ctx, within(40*time.Millisecond))
	g.mu.Lock()
	defer g.mu.Unlock()
	fault.begin(g.victim)
	g.struck = fault
	if fault.end == nil {
		g.victim, g.struck = nil, nil
	}
}

func (g *stressGuest) goOn(ctx context.Context) {
	pauseFor(ctx, within(40*time.Millisecond))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.struck.end(g.victim)
	g.struck = nil
}

// rings is how often the guest rang the gate, as far as it can be asked.
func (g *stressGuest) rings() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.victim == nil || g.struck != nil {
		return 0
	}
	rings, _ := g.victim.order("rung")
	return int(rings)
}
