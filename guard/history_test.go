package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// The operations of a client on a lease.
const (
	take    = "take"
	renew   = "renew"
	release = "release"
)

// event is the begin or the end of an operation on a lease. Times are those of the
// machine, which also runs the server, in nanoseconds.
type event struct {
	Does  string
	Begun bool
	Token uint64 // that it has, or got: 0 if it was refused
	Done  bool
	Again bool // its connection was lost: it was sent more than once
	At    int64
}

// historyMain takes, renews and releases a lease at random, with its token or an old one,
// and prints every operation before and after. It never waits, and drops some of its tokens,
// so that leases expire.
func historyMain(ctx context.Context, db *notify.DB, t childInput) error {
	lease, err := guard.NewMutex(db, t.Name, guard.MutexOptions{Kind: "lease", TTL: t.TTL})
	if err != nil {
		return err
	}
	does := func(what string, token uint64, f func() (uint64, error)) uint64 {
		tell := func(e event) {
			e.Does, e.At = what, time.Now().UnixNano()
			text, _ := json.Marshal(e)
			say("%s", text)
		}
		tell(event{Begun: true, Token: token})
		before := guard.Retried()
		token, err := f()
		if err != nil && !errors.Is(err, notify.ErrNotAcquired) && !errors.As(err, new(*guard.TokenError)) {
			return 0 // it may still happen
		}
		tell(event{Token: token, Done: err == nil, Again: guard.Retried() > before})
		return token
	}
	random := t.random()
	go func() {
		var token, old uint64
		for {
			switch has := token != 0; {
			case !has || random.IntN(8) == 0:
				newer := does(take, 0, func() (uint64, error) {
					if t.Kind == "broken" {
						return brokenTake(ctx, db, t)
					}
					return lease.Take(ctx)
				})
				if newer != 0 {
					old, token = token, newer
				}
			case random.IntN(3) == 0:
				does(release, token, func() (uint64, error) { return token, lease.Release(ctx, token) })
				old, token = token, 0
			case t.TTL < time.Minute && random.IntN(10) == 0:
				token = 0 // forgotten: it expires
			default:
				does(renew, token, func() (uint64, error) { return token, guard.Renew(ctx, lease, token) })
			}
			if old != 0 && random.IntN(6) == 0 {
				does(release, old, func() (uint64, error) { return old, lease.Release(ctx, old) })
			}
			<-time.After(time.Duration(random.IntN(4)) * time.Millisecond)
		}
	}()
	return eachOrder(func(string) error { return nil })
}

// brokenTake reads whether the lease is free, and then takes it, in two statements.
func brokenTake(ctx context.Context, db *notify.DB, t childInput) (uint64, error) {
	var free bool
	err := db.Pool().GetContext(ctx, &free, "SELECT NOT EXISTS (SELECT 1 FROM mqnotify_lease WHERE name = ? AND expires_at > UTC_TIMESTAMP(6))", t.Name)
	if err != nil {
		return 0, err
	}
	if !free {
		return 0, notify.ErrNotAcquired
	}
	result, err := db.Pool().ExecContext(ctx, `INSERT INTO mqnotify_lease (name, token, taker, taken_at, expires_at)
		VALUES (?, LAST_INSERT_ID(1), '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)
		ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token + 1), expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND`,
		t.Name, t.TTL.Microseconds(), t.TTL.Microseconds())
	if err != nil {
		return 0, err
	}
	id, err := result.LastInsertId()
	return uint64(id), err
}

// operation is a begin and an end as one operation for porcupine.
type operation struct {
	does   string
	token  uint64 // that was given
	got    uint64 // by take
	done   bool
	known  bool // it has ended
	call   int64
	answer int64
}

// leaseState is the state of the model.
type leaseState struct {
	token uint64
	held  bool
	// When the call began that last took or renewed it, and when its answer came.
	call, answer int64
}

// leaseModel is the guarantee of a lease: every taking has a token larger by one; no process
// takes it while it is held; only its holder can renew and release it. It
// is held until it is released, or until ttl after it was taken or renewed, which the
// server did at some time between call and answer. An operation without an answer
// may happen at any time after its call, or never.
func leaseModel(ttl time.Duration) porcupine.Model {
	const slack = int64(2 * time.Millisecond) // for a machine's clock that is corrected
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{leaseState{}} },
		Step: func(state, input, _ any) (states []any) {
			s, o := state.(leaseState), input.(operation)
			mayBeOver := o.answer+slack >= s.call+int64(ttl) || o.answer == math.MaxInt64
			mustBeOver := s.answer != math.MaxInt64 && o.call-slack > s.answer+int64(ttl)
			could := func(done bool) bool {
				switch {
				case o.does == take && done:
					return !s.held || mayBeOver
				case o.does == take:
					return s.held && !mustBeOver
				case done:
					return s.held && s.token == o.token && !mustBeOver
				}
				return !s.held || s.token != o.token || mayBeOver
			}
			if could(true) && (o.done || !o.known) {
				next, fits := s, true
				switch o.does {
				case take:
					next = leaseState{s.token + 1, true, o.call, o.answer}
					fits = !o.known || o.got == next.token
				case renew:
					next.call, next.answer = max(s.call, o.call), max(s.answer, o.answer)
				case release:
					next.held = false
				}
				if fits {
					states = append(states, next)
				}
			}
			if !o.known || !o.done && could(false) {
				states = append(states, s)
			}
			return states
		},
		Equal: func(a, b any) bool { return a == b },
	}).ToModel()
}

// faults are the faults of the processes that share a lease.
type faults struct {
	kills, cuts int
	proxy       *mysqltest.Proxy
	dsn         func(n int, direct string) string
}

// histories runs processes that share a lease, kills and replaces some, cuts their
// connections, and returns their operations, and the number of repeated statements.
func histories(t *testing.T, db *notify.DB, input childInput, processes, most int, faults faults) (all []porcupine.Operation, again int) {
	t.Helper()
	counted := func() int {
		return mysqltest.Value[int](t, db.Pool(), "SELECT COALESCE(SUM(token + renewals), 0) FROM mqnotify_lease WHERE name = ?", input.Name)
	}
	random := mysqltest.Random(t)
	var running, ended []*peer
	begin := func(n int) *peer {
		input := input
		input.DSN = faults.dsn(n, input.DSN)
		return startPeer(t, input)
	}
	for n := range processes {
		running = append(running, begin(n))
	}
	steps := max(faults.kills, faults.cuts) + 1
	for step := range steps {
		want := most * (step + 1) / steps
		require.Eventually(t, func() bool { return counted() >= want }, 10*patience, tick)
		if step < faults.kills {
			victim := random.IntN(processes)
			running[victim].kill()
			ended = append(ended, running[victim])
			running[victim] = begin(victim)
		}
		if step < faults.cuts {
			faults.proxy.Down()
			faults.proxy.Up()
		}
	}
	clients := len(ended) + len(running)
	for client, p := range append(ended, running...) {
		p.kill()
		var begun *event
		end := func(e event, known bool) {
			o := operation{does: begun.Does, token: begun.Token, call: begun.At, answer: math.MaxInt64}
			add := func(client int) {
				all = append(all, porcupine.Operation{ClientId: client, Input: o, Call: o.call, Output: o, Return: o.answer})
			}
			if e.Again { // the statement of the lost connection may run later
				add(clients + len(all))
				again++
			}
			if known {
				o.got, o.done, o.answer, o.known = e.Token, e.Done, e.At, true
			}
			add(client)
			begun = nil
		}
		for line := range p.lines {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				continue // cut off by its death
			}
			switch {
			case e.Begun:
				if begun != nil { // it has no answer
					end(event{}, false)
				}
				begun = &e
			case begun != nil:
				end(e, true)
			}
		}
		if begun != nil {
			end(event{}, false)
		}
	}
	return all, again
}

// The histories of processes that take, renew and release leases at the same time, are killed
// and lose their connections, are linearizable histories of one lease, by a
// checker.
func TestLeaseLinearizable(t *testing.T) {
	most, kills, cuts := mysqltest.Many(60, 120, 3000), mysqltest.Many(1, 2, 20), mysqltest.Many(2, 4, 60)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := openState(t, s)
		for _, ttl := range []time.Duration{time.Hour, 60 * time.Millisecond} {
			proxy := s.Proxy(t)
			faults := faults{kills: kills, cuts: cuts, proxy: proxy, dsn: halfThrough(s, proxy)}
			if ttl == time.Hour {
				faults.kills = 0 // or the lease of one that was killed would be the last thing that happens
			}
			input := childInput{Role: "history", DSN: config.FormatDSN(), Name: "ttl " + ttl.String(), TTL: ttl}
			history, again := histories(t, db, input, 5, most, faults)
			judged := porcupine.CheckOperationsTimeout(leaseModel(ttl), history, 10*time.Minute) // some seconds, on a machine with nothing else to do
			require.Equal(t, porcupine.Ok, judged, "%s", shownHistory(history))
			t.Logf("ttl %v: %d operations of %d processes, %d of them killed with kill -9, connections of half of them cut %d times, %d sent again: linearizable",
				ttl, len(history), 5+faults.kills, faults.kills, cuts, again)
		}
	})
}

// The checker rejects a lease that first reads and then takes.
func TestLeaseLinearizableDetectsTwoHolders(t *testing.T) {
	if testing.Short() {
		t.Skip("shows that TestLeaseLinearizable can fail, not what a lease does; TestMutexProcessesDetectTwoHolders does the like")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := openState(t, s)
		ttl := 60 * time.Millisecond
		input := childInput{Role: "history", Kind: "broken", DSN: config.FormatDSN(), TTL: ttl}
		require.Eventually(t, func() bool {
			input.Name += "x"
			history, _ := histories(t, db, input, 5, 150, faults{dsn: same})
			return porcupine.CheckOperationsTimeout(leaseModel(ttl), history, time.Minute) == porcupine.Illegal
		}, 10*patience, tick)
	})
}

// shownHistory returns the history as text, an operation on each line.
func shownHistory(all []porcupine.Operation) string {
	var text strings.Builder
	for _, o := range all {
		fmt.Fprintf(&text, "%d: %d to %d: %+v\n", o.ClientId, o.Call, o.Return, o.Input)
	}
	return text.String()
}
