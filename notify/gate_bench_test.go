package notify_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// Floor and gate alternate in each round, so that what the machine does otherwise
// hits both; a round begins when all are parked. The figures are medians.

// BenchmarkGateWake is one listener's wake, from Ring's call to Wait's return, by the
// producer that keeps the gate and by another over its bell. Its floor is a bare
// hand-over between two sessions: RELEASE_LOCK sent, GET_LOCK returned.
//
//	go test ./notify -run - -bench GateWake -benchtime 500x
func BenchmarkGateWake(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		config := s.Database(b)
		first, second, third := openDB(b, config), openDB(b, config), openDB(b, config)
		makeTopic(b, first)
		keeper, other := joined(b, first), joined(b, second)
		awaitParked(b, first, 1) // the keeper on the other's bell
		listeners := parkAll(b, third)
		bare := newBare(b, first, 1, 1)
		var trips, handOvers, wakes, bells []time.Duration
		for b.Loop() {
			bare.next(b)
			awaitParked(b, first, 3)
			trips = append(trips, bare.trip(b))
			awaitParked(b, first, 3)
			handOvers = append(handOvers, bare.listeners.last(b, func() { bare.pass(b) }))
			awaitParked(b, first, 3)
			wakes = append(wakes, listeners.last(b, func() { keeper.Ring(0) }))
			awaitParked(b, first, 3)
			bells = append(bells, listeners.last(b, func() { other.Ring(0) }))
		}
		floor := micros(handOvers)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(micros(trips), "trip-µs")
		b.ReportMetric(floor, "hand-over-µs")
		b.ReportMetric(micros(wakes), "keeper-µs")
		b.ReportMetric(micros(bells), "bell-µs")
		b.ReportMetric(micros(wakes)/floor, "keeper/hand-over")
		b.ReportMetric(micros(bells)/floor, "bell/hand-over")
	})
}

// BenchmarkGateBroadcast is the time from Ring's call to the return of the last Wait
// of many processes. Its floor is a bare cascade: as many sessions that wait for as
// many lanes' locks, with no more than GET_LOCK and RELEASE_LOCK, and wait anew
// when awake.
//
//	go test ./notify -run - -bench GateBroadcast -benchtime 50x
func BenchmarkGateBroadcast(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		s = s.Start(b, "--max-connections=4000", "--innodb-doublewrite=OFF")
		for _, n := range []int{100, 1000} {
			b.Run(fmt.Sprint(n), func(b *testing.B) {
				config := s.Database(b)
				producer := openDB(b, config)
				makeTopic(b, producer)
				keeper := joined(b, producer)
				var processes []*notify.DB
				for range n {
					processes = append(processes, openDB(b, config))
				}
				listeners := parkAll(b, processes...)
				bare := newBare(b, producer, n, notify.Lanes)
				var floors, gates []time.Duration
				for b.Loop() {
					awaitParked(b, producer, 2*n)
					floors = append(floors, bare.listeners.last(b, func() { bare.turn(b) }))
					awaitParked(b, producer, 2*n)
					gates = append(gates, listeners.last(b, func() { keeper.Ring(0) }))
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(micros(floors)/1000, "cascade-ms")
				b.ReportMetric(micros(gates)/1000, "gate-ms")
				b.ReportMetric(micros(gates)/micros(floors), "gate/cascade")
			})
		}
	})
}

func micros(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2]) / float64(time.Microsecond)
}

func joined(tb testing.TB, db *notify.DB) *notify.Gate {
	tb.Helper()
	gate := openGate(tb, db, "orders", notify.GateOptions{})
	require.NoError(tb, gate.Join(tb.Context()))
	return gate
}

// awaitParked waits until n sessions of the test wait for a lock, and the last ring is
// a while ago.
func awaitParked(tb testing.TB, db *notify.DB, n int) {
	tb.Helper()
	<-time.After(5 * time.Millisecond)
	require.Eventually(tb, func() bool {
		var now int
		const query = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = ? AND STATE = ?"
		err := db.Pool().QueryRow(query, db.Name(), waiting).Scan(&now)
		return err == nil && now == n
	}, patience, tick)
}

// sleepers are goroutines that wait again and again, and send the time of each wake.
type sleepers struct {
	n     int
	awake chan time.Time
}

// sleep runs wait for each of n until it fails, which it does when ctx ends at the
// test's end.
func sleep(tb testing.TB, n int, wait func(ctx context.Context, i int) error) *sleepers {
	tb.Helper()
	s := &sleepers{n, make(chan time.Time, 2*n)}
	ctx, cancel := context.WithCancel(tb.Context())
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			for wait(ctx, i) == nil {
				s.awake <- time.Now()
			}
		})
	}
	tb.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return s
}

// last is the time from the call of wake until all have woken once.
func (s *sleepers) last(tb testing.TB, wake func()) time.Duration {
	tb.Helper()
	for len(s.awake) > 0 { // of a keeper that came
		<-s.awake
	}
	begun, last := time.Now(), time.Time{}
	wake()
	for range s.n {
		if at := mysqltest.Receive(tb, s.awake); at.After(last) {
			last = at
		}
	}
	return last.Sub(begun)
}

// parkAll parks a Gate of each process.
func parkAll(tb testing.TB, processes ...*notify.DB) *sleepers {
	tb.Helper()
	var gates []*notify.Gate
	var heads []notify.Head
	for _, db := range processes {
		gate := openGate(tb, db, "orders", notify.GateOptions{})
		head, err := gate.Head(tb.Context())
		require.NoError(tb, err)
		gates, heads = append(gates, gate), append(heads, head)
	}
	return sleep(tb, len(gates), func(ctx context.Context, i int) (err error) {
		heads[i], err = gates[i].Wait(ctx, heads[i], time.Hour)
		return err
	})
}

// bare is a ring of phases without anything else.
type bare struct {
	listeners *sleepers
	holder    *sql.Conn
	name      string
	lanes     int
	phase     int
}

func newBare(tb testing.TB, db *notify.DB, n, lanes int) *bare {
	tb.Helper()
	pool := db.Pool()
	pool.SetMaxIdleConns(2*n + 10)
	connect := func() *sql.Conn {
		conn, err := pool.Conn(tb.Context())
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, conn.Close()) })
		return conn
	}
	f := &bare{holder: connect(), name: lockName(db, "bare"), lanes: lanes}
	f.hold(tb, "SELECT "+f.calls("GET_LOCK('%s', 0)", 0))
	var conns []*sql.Conn
	for range n {
		conns = append(conns, connect())
	}
	phases := make([]int, n)
	f.listeners = sleep(tb, n, func(ctx context.Context, i int) error {
		name := f.lock(i%lanes, phases[i])
		phases[i]++
		var got, let int
		return conns[i].QueryRowContext(ctx, "SELECT GET_LOCK('"+name+"', 3600), RELEASE_LOCK('"+name+"')").Scan(&got, &let)
	})
	return f
}

func (f *bare) lock(lane, phase int) string { return fmt.Sprintf("%s:%d:%d", f.name, lane, phase%256) }

func (f *bare) calls(call string, phase int) string {
	calls := make([]string, f.lanes)
	for lane := range calls {
		calls[lane] = fmt.Sprintf(call, f.lock(lane, phase))
	}
	return strings.Join(calls, " + ")
}

// next takes the next phase, for a pass.
func (f *bare) next(tb testing.TB) {
	tb.Helper()
	f.hold(tb, "SELECT "+f.calls("GET_LOCK('%s', 0)", f.phase+1))
}

// pass lets the phase go.
func (f *bare) pass(tb testing.TB) {
	tb.Helper()
	f.phase++
	f.hold(tb, "SELECT "+f.calls("RELEASE_LOCK('%s')", f.phase-1))
}

// turn takes the next phase and lets the one before go in one statement.
func (f *bare) turn(tb testing.TB) {
	tb.Helper()
	f.phase++
	f.hold(tb, "SELECT IF("+f.calls("GET_LOCK('%s', 0)", f.phase)+fmt.Sprintf(" = %d, ", f.lanes)+
		f.calls("RELEASE_LOCK('%s')", f.phase-1)+", -1)")
}

func (f *bare) hold(tb testing.TB, query string) {
	tb.Helper()
	var got int
	require.NoError(tb, f.holder.QueryRowContext(tb.Context(), query).Scan(&got))
	require.Equal(tb, f.lanes, got)
}

// trip is the time of a bare round trip.
func (f *bare) trip(tb testing.TB) time.Duration {
	tb.Helper()
	var one int
	begun := time.Now()
	require.NoError(tb, f.holder.QueryRowContext(tb.Context(), "SELECT 1").Scan(&one))
	return time.Since(begun)
}
