// Package bench measures what two settings of the gate cost and bring, and plots it
// into ../docs:
//
//	go -C bench test -run Curves -v -plot
//
// It is a module of its own, so that nobody who uses mqnotify downloads a plotter.
package bench

import (
	"context"
	"flag"
	"fmt"
	"image/color"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
	schema "github.com/mqnotify/mqnotify/sql"
)

var (
	draw = flag.Bool("plot", false, "write the plots into ../docs")
	long = flag.Duration("for", 5*time.Second, "how long to measure each curve")
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// point is what one setting costs and brings.
type point struct {
	name       string
	statements float64 // a second
	median     time.Duration
}

// counted is a policy that counts its waits: a keeper's looks, a statement each.
type counted struct {
	backoff.BackOff
	n *atomic.Int64
}

func (c counted) NextBackOff() time.Duration {
	c.n.Add(1)
	return c.BackOff.NextBackOff()
}

// TestCurves measures the wake of a keeper's own process for rows of a writer that
// knows nothing of the gate, against the keeper's looks; and the wake of another
// process under a load of rings, against the statements for them.
func TestCurves(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		looks := map[string][]point{"from 10 ms up to": nil, "each": nil}
		var all sync.WaitGroup
		var mu sync.Mutex
		config := s.Database(t)
		add := func(family string, most time.Duration, policy func() backoff.BackOff) {
			db, err := notify.OpenConfig(config)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			topic := fmt.Sprintf("t_%d_%d", len(family), most.Milliseconds())
			require.NoError(t, schema.Init(t.Context(), db.Pool(), topic))
			all.Go(func() {
				p := foreign(t, db, topic, policy)
				p.name = fmt.Sprint(most)
				mu.Lock()
				defer mu.Unlock()
				looks[family] = append(looks[family], p)
			})
		}
		for _, ms := range []int{50, 100, 250, 500, 1000, 2000, 5000} {
			most := time.Duration(ms) * time.Millisecond
			add("from 10 ms up to", most, func() backoff.BackOff { return &notify.Fibonacci{Max: most, Jitter: 0.1} })
			add("each", most, func() backoff.BackOff { return backoff.NewConstantBackOff(most) })
		}
		all.Wait()
		report(t, s, "curve-look", "A row of a writer that rings for nobody, one in two seconds: latency against looks", looks)

		rings := map[string][]point{"coalescing": nil}
		for _, ms := range []int{1, 2, 5, 10, 20} {
			least := time.Duration(ms) * time.Millisecond
			p := burst(t, s, least)
			p.name = fmt.Sprint(least)
			rings["coalescing"] = append(rings["coalescing"], p)
		}
		report(t, s, "curve-coalesce", "1,000 publishes a second, one listener: latency against statements", rings)
	})
}

// foreign inserts rows at random, one in two seconds, and measures the wakes.
func foreign(t *testing.T, db *notify.DB, topic string, policy func() backoff.BackOff) point {
	var n atomic.Int64
	gate := notify.NewGate(db, topic, notify.GateOptions{Look: func() backoff.BackOff { return counted{policy(), &n} }})
	defer func() { _ = gate.Close() }()
	head, err := gate.Head(t.Context())
	if err != nil {
		t.Error(err)
		return point{}
	}
	var latencies []time.Duration
	begun, before := time.Now(), n.Load()
	for len(latencies) == 0 || time.Since(begun) < *long {
		<-time.After(time.Duration(rand.ExpFloat64() * float64(2*time.Second)))
		head, _ = gate.Wait(t.Context(), head, 0)
		if _, err := db.Pool().ExecContext(t.Context(), "INSERT INTO "+topic+" (payload) VALUES ('x')"); err != nil {
			t.Error(err)
			return point{}
		}
		committed := time.Now()
		if head, err = gate.Wait(t.Context(), head, time.Minute); err != nil {
			t.Error(err)
			return point{}
		}
		latencies = append(latencies, time.Since(committed))
	}
	return point{statements: float64(n.Load()-before) / time.Since(begun).Seconds(), median: median(latencies)}
}

// burst rings as a thousand publishes a second do, and measures until the first wake
// that follows each.
func burst(t *testing.T, s *mysqltest.Server, least time.Duration) point {
	config := s.Database(t)
	gates := make([]*notify.Gate, 2)
	for i := range gates {
		db, err := notify.OpenConfig(config)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		gates[i] = notify.NewGate(db, "none", notify.GateOptions{Coalesce: least})
		defer func() { require.NoError(t, gates[i].Close()) }()
	}
	producer, listener := gates[0], gates[1]
	require.NoError(t, producer.Join(t.Context()))
	head, err := listener.Head(t.Context())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	var waiting, latencies []time.Duration // since begun
	begun := time.Now()
	before := s.Questions(t)
	var ringing sync.WaitGroup
	ringing.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			mu.Lock()
			waiting = append(waiting, time.Since(begun))
			mu.Unlock()
			producer.Ring(0)
		}
	})
	for window := max(*long/5, time.Second); len(latencies) == 0 || time.Since(begun) < window; {
		next, err := listener.Wait(ctx, head, time.Second)
		if err != nil {
			t.Error(err)
			break
		}
		now := time.Since(begun)
		head = next
		mu.Lock()
		for _, rung := range waiting {
			latencies = append(latencies, now-rung)
		}
		waiting = waiting[:0]
		mu.Unlock()
	}
	stop()
	ringing.Wait()
	return point{statements: float64(s.Questions(t)-before) / time.Since(begun).Seconds(), median: median(latencies)}
}

func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// report prints the points as a table, and plots them when asked to.
func report(t *testing.T, s *mysqltest.Server, name, title string, families map[string][]point) {
	t.Helper()
	var table strings.Builder
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title+"\n"+s.Name(), "statements a second", "median latency, ms"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Add(plotter.NewGrid())
	colors := []color.Color{color.RGBA{R: 0x1f, G: 0x5f, B: 0xbf, A: 0xff}, color.RGBA{R: 0xbf, G: 0x5f, B: 0x1f, A: 0xff}}
	for i, family := range slices.Sorted(maps.Keys(families)) {
		points := families[family]
		slices.SortFunc(points, func(a, b point) int { return int(1000 * (a.statements - b.statements)) })
		xys := make(plotter.XYs, len(points))
		labels := make([]string, len(points))
		for j, point := range points {
			require.NotZero(t, point.median, "%s %s", family, point.name)
			ms := float64(point.median) / float64(time.Millisecond)
			fmt.Fprintf(&table, "| %s, %s | %.1f | %.2f |\n", family, point.name, point.statements, ms)
			xys[j], labels[j] = plotter.XY{X: point.statements, Y: ms}, point.name
		}
		line, dots, err := plotter.NewLinePoints(xys)
		require.NoError(t, err)
		line.Color, dots.Color = colors[i%len(colors)], colors[i%len(colors)]
		text, err := plotter.NewLabels(plotter.XYLabels{XYs: xys, Labels: labels})
		require.NoError(t, err)
		p.Add(line, dots, text)
		p.Legend.Add(family, line)
	}
	p.Legend.Top = true
	t.Logf("%s, %s\n\n| setting | statements/s | median, ms |\n|---|---|---|\n%s", s.Name(), title, table.String())
	if *draw {
		file := filepath.Join("..", "docs", name+"-"+s.Name()+".svg")
		require.NoError(t, p.Save(18*vg.Centimeter, 11*vg.Centimeter, file))
	}
}
