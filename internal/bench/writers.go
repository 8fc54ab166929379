package bench

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/internal/wake"
)

// bareTrigger is the floor: what any trigger costs.
const bareTrigger = "an empty trigger"

// writers measures how many INSERTs a second saturating writers get, and the longest INSERT, on a table with a wake trigger:
// without a listener, with a listener whose process is stopped, and with a consumer. The floor is a table whose trigger does
// nothing.
func writers(ctx context.Context, b *bench) error {
	names := b.gates(b.topic, "_wake", "_stopped")
	const stopped, consumed = 3, 4
	kinds := []struct{ name, table string }{
		{"no trigger", b.topic + "_bare"},
		{bareTrigger, b.topic + "_empty"},
		{"a wake trigger, no listener", names[0]},
		{"a wake trigger, a stopped listener", names[1]},
		{"a wake trigger, a consumer", b.topic},
	}
	pool := b.db.Pool()
	for _, kind := range kinds[:consumed] {
		if _, err := pool.ExecContext(ctx, schema.Topic(kind.table)); err != nil {
			return err
		}
		b.atEnd(func() error {
			_, err := pool.ExecContext(context.WithoutCancel(ctx), "DROP TABLE "+ident.Quote(kind.table))
			return err
		})
	}
	empty := "CREATE TRIGGER " + ident.Quote(kinds[1].table) + " AFTER INSERT ON " + ident.Quote(kinds[1].table) + " FOR EACH ROW DO 0"
	if _, err := pool.ExecContext(ctx, empty); err != nil {
		return err
	}
	if err := wake.Install(ctx, b.db, wake.Options{Logger: quiet}, names[0], names[1], b.topic); err != nil {
		return err
	}
	_, end, err := b.listen(ctx, consumer.Options{From: "beginning"})
	if err != nil {
		return err
	}
	b.atEnd(end)
	type load struct{ writers, rows int }
	few, many := min(8, b.Writers), max(1, min(batch, b.Rows/10))
	loads := slices.Compact([]load{{1, 1}, {few, 1}, {b.Writers, 1}, {few, many}, {b.Writers, many}})
	for n, load := range loads {
		rates, longest := make([][]float64, len(kinds)), make([][]float64, len(kinds))
		err := turns(func(i int, kept bool) error {
			for j, kind := range kinds {
				goOn := func() {}
				if j == stopped {
					var err error
					if goOn, err = b.stoppedListener(ctx, kind.table); err != nil {
						return err
					}
				}
				rate, most, err := b.write(ctx, kind.table, load.writers, load.rows)
				goOn()
				if err != nil {
					return err
				}
				if kept {
					rates[j], longest[j] = append(rates[j], rate), append(longest[j], ms(most))
				}
				b.Progress(b.suite, (n*(1+times)+i)*len(kinds)+j+1, len(loads)*(1+times)*len(kinds))
			}
			return nil
		})
		if err != nil {
			return err
		}
		what := fmt.Sprintf("writers: %d, rows a statement: %d", load.writers, load.rows)
		rate, most := what+", "+bareTrigger, what+", the longest, "+bareTrigger
		b.add(rate, "INSERTs/s", rates[1], "")
		b.add(most, "ms", longest[1], "")
		for _, j := range []int{0, 2, stopped, consumed} {
			b.add(what+", "+kinds[j].name, "INSERTs/s", rates[j], rate)
			b.add(what+", the longest, "+kinds[j].name, "ms", longest[j], most)
		}
	}
	return nil
}

// gates returns names that begin with the topic's name, with these ends, for tables that have a gate each.
func (b *bench) gates(topic string, ends ...string) (names []string) {
	taken := map[int]bool{waiting.Gate(topic): true}
	for _, end := range ends {
		name := topic + end
		for taken[waiting.Gate(name)] {
			name += "_"
		}
		taken[waiting.Gate(name)] = true
		names = append(names, name)
	}
	return names
}

// stoppedListener has the effect of a listener whose process was stopped while it led: its session holds the lock that
// makes the trigger send KILLs, and does not wait. The server ends such a session after 3 s. This one stays until goOn is
// called.
func (b *bench) stoppedListener(ctx context.Context, table string) (goOn func(), err error) {
	conn, err := b.db.Pool().Conn(ctx)
	if err != nil {
		return nil, err
	}
	goOn = func() { _ = conn.Raw(func(any) error { return driver.ErrBadConn }) } // the end of the session frees the lock
	var got sql.NullInt64
	err = conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 5)", waiting.WokenLocks(b.db.Name(), table)[0]).Scan(&got)
	if err == nil && got.Int64 != 1 {
		err = errors.New("another program listens to " + table)
	}
	if err != nil {
		goOn()
	}
	return goOn, err
}

// write inserts rows over a number of connections for a tenth of the window. It returns the statements
// a second and how long the longest one took.
func (b *bench) write(ctx context.Context, table string, connections, rows int) (rate float64, longest time.Duration, err error) {
	statement := "INSERT INTO " + ident.Quote(table) + " (payload) VALUES " +
		strings.TrimSuffix(strings.Repeat("('0123456789abcdef0123456789abcdef'), ", rows), ", ")
	conns := make([]*sql.Conn, connections)
	for i := range conns {
		if conns[i], err = b.db.Pool().Conn(ctx); err != nil {
			return 0, 0, err
		}
		defer conns[i].Close()
	}
	begun := time.Now()
	until := begun.Add(b.Window / 10)
	counts, longests, errs := make([]int, connections), make([]time.Duration, connections), make([]error, connections)
	var all sync.WaitGroup
	for i, conn := range conns {
		all.Go(func() {
			for at := begun; at.Before(until) && errs[i] == nil; counts[i]++ {
				_, errs[i] = conn.ExecContext(ctx, statement)
				now := time.Now()
				longests[i] = max(longests[i], now.Sub(at))
				at = now
			}
		})
	}
	all.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / time.Since(begun).Seconds(), slices.Max(longests), errors.Join(errs...)
}
