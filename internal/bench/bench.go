// Package bench measures mqnotify on a server. It compares every figure with a floor of the same run:
// the server's speed with bare statements over bare connections.
package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// Suites are the names of the suites, in the order in which they run.
var Suites = []string{"latency", "throughput", "idle", "fanout", "queue", "writers"}

// Options are the sizes of the measurements.
type Options struct {
	Rounds    int           // of latency, fanout and queue; a tenth more warm up
	Rows      int           // of throughput; a tenth of them are tasks of queue
	Listeners int           // of fanout
	Writers   int           // of writers: the maximum number of connections
	Window    time.Duration // of idle
	Progress  func(suite string, done, of int)
	Polls     func(why string) // called if the account's listeners poll although there is a wake trigger
}

// Figure is a measurement: a distribution, in Unit, compared with its floor.
type Figure struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
	// Floor is the name of the figure to compare with; it is empty for a floor itself.
	Floor string `json:"floor,omitempty"`
	// Ratio is Median divided by the floor's; more is worse for a time and better for a rate.
	Ratio float64 `json:"ratio,omitempty"`
	// Idle is the statements a second of the waiting processes; nil if they were not measured with this latency.
	Idle    *float64  `json:"idle,omitempty"`
	Samples []float64 `json:"-"`
}

// Run measures a suite in a database of the server, in a table of its own, which it drops
// at the end. The tables that all topics share (schema.Init) stay.
func Run(ctx context.Context, suite string, config *mysql.Config, options Options) (figures []Figure, err error) {
	measure, ok := map[string]func(context.Context, *bench) error{
		"latency": latency, "throughput": throughput, "idle": idle, "fanout": fanout, "queue": tasks, "writers": writers,
	}[suite]
	if !ok {
		return nil, fmt.Errorf("bench: no suite %q", suite)
	}
	if options.Progress == nil {
		options.Progress = func(string, int, int) {}
	}
	if options.Polls == nil {
		options.Polls = func(string) {}
	}
	b := &bench{Options: options, suite: suite, config: config, topic: fmt.Sprintf("mqnotify_bench_%d", time.Now().UnixNano())}
	if b.db, err = b.process(); err != nil {
		return nil, err
	}
	defer b.close()
	b.db.Pool().SetMaxOpenConns(0) // otherwise writers would wait forever for a connection that other writers hold
	if err := schema.Init(ctx, b.db.Pool(), b.topic); err != nil {
		return nil, fmt.Errorf("bench: make the table: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		for i := len(b.closing) - 1; i >= 0; i-- { // close the users of the table before it is dropped
			err = errors.Join(err, b.closing[i]())
		}
		b.closing = nil
		if _, dropped := b.db.Pool().ExecContext(ctx, "DROP TABLE "+ident.Quote(b.topic)); dropped != nil {
			err = errors.Join(err, fmt.Errorf("bench: drop the table %s: %w", b.topic, dropped))
		}
	}()
	if err := measure(ctx, b); err != nil {
		return nil, fmt.Errorf("bench: %s: %w", suite, err)
	}
	return b.figures, nil
}

// bench is a running suite.
type bench struct {
	Options
	suite   string
	config  *mysql.Config
	db      *notify.DB
	dbs     []*notify.DB
	topic   string
	closing []func() error // run at the end, the last one first
	figures []Figure
}

// process returns a DB with its own connections, as another process would have. It is closed with the bench.
func (b *bench) process() (*notify.DB, error) {
	db, err := notify.OpenConfig(b.config)
	if err != nil {
		return nil, fmt.Errorf("bench: connect: %w", err)
	}
	b.dbs = append(b.dbs, db)
	return db, nil
}

func (b *bench) close() {
	for _, db := range b.dbs {
		_ = db.Close()
	}
}

// trigger creates the topic's wake trigger, and reports by Polls if it can't wake this account's listeners.
func (b *bench) trigger(ctx context.Context) error {
	if err := wake.Install(ctx, b.db, wake.Options{Logger: quiet}, b.topic); err != nil {
		return err
	}
	waiter := core.NewAuto(b.db, core.LargestID(b.topic, "id"), core.AutoOptions{Logger: quiet})
	defer func() { _ = waiter.Close() }()
	if _, err := waiter.Head(ctx); err != nil { // returns when the mode is known
		return err
	}
	if mode, why := waiter.Mode(); mode != "trigger" {
		b.Polls(why)
	}
	return nil
}

// atEnd registers a function to run when the suite has ended.
func (b *bench) atEnd(f func() error) { b.closing = append(b.closing, f) }

// NewFigure returns the distribution of samples.
func NewFigure(name, unit string, samples []float64) Figure {
	f := Figure{Name: name, Unit: unit, Samples: slices.Clone(samples)}
	slices.Sort(f.Samples)
	if n := len(f.Samples); n > 0 {
		f.Median, f.Max = f.Samples[n/2], f.Samples[n-1]
		f.P99 = f.Samples[int(math.Ceil(0.99*float64(n)))-1]
	}
	return f
}

// add adds a figure. Its floor must have been added before.
func (b *bench) add(name, unit string, samples []float64, floor string) {
	f := NewFigure(name, unit, samples)
	f.Floor = floor
	for _, other := range b.figures {
		if floor != "" && other.Name == floor && other.Median > 0 {
			f.Ratio = f.Median / other.Median
		}
	}
	b.figures = append(b.figures, f)
}

// rounds runs a round repeatedly. The first tenth warms up and is not kept.
func (b *bench) rounds(ctx context.Context, round func(kept bool) error) error {
	warmUp := max(1, b.Rounds/10)
	for i := range warmUp + b.Rounds {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := round(i >= warmUp); err != nil {
			return err
		}
		b.Progress(b.suite, i+1, warmUp+b.Rounds)
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// rest gives woken waiters time to wait again.
func rest(ctx context.Context) { _ = server.Pause(ctx, 3*time.Millisecond) } // the next statement returns the error of ctx
