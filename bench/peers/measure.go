package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// amounts are how much to measure.
type amounts struct {
	turns, samples int           // the turns of each peer, and the messages of each turn
	warm, turn     time.Duration // how long messages don't count at first; the longest turn
	settle, window time.Duration // before idle statements are counted, and while they are
	rest, sleep    time.Duration // the same for mqnotify, which sends each of its statements at least once in 90 s
	listeners      int
	rates          time.Duration // how long rows are published, and read
	rows           int           // the most that are published in that time
	late           int           // transactions that commit late
	slowest        time.Duration // peers that poll less often are left out
}

var (
	usual = amounts{
		turns: 6, samples: 240, warm: time.Second, turn: 5 * time.Second, settle: 5 * time.Second, window: 5 * time.Second, rest: 20 * time.Second, sleep: 90 * time.Second, listeners: 6,
		rates: 3 * time.Second, rows: 1_000_000, late: 6, slowest: time.Second,
	}
	short = amounts{
		turns: 1, samples: 5, turn: time.Minute, settle: 100 * time.Millisecond, window: time.Second, rest: 100 * time.Millisecond, sleep: time.Second, listeners: 2,
		rates: 2 * time.Second, rows: 2000, late: 2, slowest: 100 * time.Millisecond,
	}
)

// result has a peer's measurements.
type result struct {
	peer          *peer
	topic         topic     // while it is this one's turn
	rows          int       // that were published for the backlog
	latencies     []float64 // ms, from the publish's call
	idle, each    float64   // statements a second: with one listener, and for each further one
	publish, read []float64 // rows a second
	late, lost    int       // transactions that committed late, and of which the rows never came
	held          int       // those for which the rows after them had to wait
}

// String returns the measurements that were made.
func (r *result) String() string {
	f := r.latency50()
	text := fmt.Sprintf("%s: from the publish to the handler %.2f ms, p99 %.2f, of %d messages", r.peer.name, f.Median, f.P99, len(r.latencies))
	if len(r.publish) == 0 {
		return text
	}
	return text + fmt.Sprintf("; idle %.2f statements a second, each further listener %.2f; %.0f rows/s published, %.0f read; %d of %d late ones lost",
		r.idle, r.each, rate(r.publish), rate(r.read), r.lost, r.late)
}

// patience is far longer than any peer takes, even on a busy machine.
const patience = 2 * time.Minute

var errNothingCame = fmt.Errorf("a message was not handled within %v", patience)

// whileConsuming runs a consumer while f runs.
func (r *result) whileConsuming(ctx context.Context, group string, handler func([]byte), f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	consumed := make(chan error, 1)
	go func() {
		defer cancel() // f has nothing to wait for
		consumed <- r.topic.Consume(ctx, group, handler)
	}()
	err := f(ctx)
	cancel()
	return errors.Join(<-consumed, err)
}

// told returns a handler that reports each call on a channel.
func told() (<-chan time.Time, func([]byte)) {
	times := make(chan time.Time, 1024)
	return times, func([]byte) {
		select {
		case times <- time.Now():
		default: // a backlog
		}
	}
}

func receive(ctx context.Context, times <-chan time.Time) (time.Time, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case at := <-times:
		return at, nil
	case <-timer.C:
		return time.Time{}, errNothingCame
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}

// wake publishes until the consumer listens and has handled everything. A peer that keeps no messages can't tell when
// its consumer listens.
func (r *result) wake(ctx context.Context, times <-chan time.Time) error {
	for range 2 {
		for came := false; !came; {
			if err := r.topic.Publish(ctx, payload(-1)); err != nil {
				return err
			}
			late := time.NewTimer(200*time.Millisecond + 2*r.peer.each)
			select {
			case <-times:
				came = true
			case <-late.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			late.Stop()
		}
		for quiet := false; !quiet; {
			late := time.NewTimer(50 * time.Millisecond)
			select {
			case <-times:
			case <-late.C:
				quiet = true
			}
			late.Stop()
		}
	}
	return nil
}

// latency measures one turn: the time from the call of Publish to the call of the handler, for one message after the
// other, each at a random time between two polls.
func (r *result) latency(ctx context.Context, a amounts) error {
	times, handler := told()
	return r.whileConsuming(ctx, "latency", handler, func(ctx context.Context) error {
		if err := r.wake(ctx, times); err != nil {
			return err
		}
		for begun := time.Now(); time.Since(begun) < a.warm; {
			if _, err := r.message(ctx, times); err != nil {
				return err
			}
		}
		begun := time.Now()
		for n := 0; n < a.samples && (n == 0 || time.Since(begun) < a.turn); n++ {
			took, err := r.message(ctx, times)
			if err != nil {
				return err
			}
			r.latencies = append(r.latencies, float64(took)/float64(time.Millisecond))
		}
		return nil
	})
}

// message measures one message: from the call of Publish to the call of the handler.
func (r *result) message(ctx context.Context, times <-chan time.Time) (time.Duration, error) {
	pause(ctx, 3*time.Millisecond+rand.N(r.peer.each+1))
	published := time.Now()
	if err := r.topic.Publish(ctx, payload(0)); err != nil {
		return 0, err
	}
	at, err := receive(ctx, times)
	return at.Sub(published), err
}

// idles counts the statements while all listeners wait, with one listener and with several.
func (r *result) idles(ctx context.Context, a amounts) error {
	one, err := r.count(ctx, a, 1)
	if err != nil {
		return err
	}
	all, err := r.count(ctx, a, a.listeners)
	r.idle, r.each = one, max(0, all-one)/float64(a.listeners-1)
	return err
}

func (r *result) count(ctx context.Context, a amounts, listeners int) (rate float64, err error) {
	settle, window := a.settle, a.window
	if r.peer.ours {
		settle, window = a.rest, a.sleep
	}
	measure := func(ctx context.Context) error {
		pause(ctx, settle)
		before, err := r.peer.questions(ctx)
		if err != nil {
			return err
		}
		begun := time.Now()
		pause(ctx, window)
		took := time.Since(begun)
		after, err := r.peer.questions(ctx)
		rate = max(0, after-before-1) / took.Seconds() // the one that asks
		return err
	}
	for i := range listeners {
		times, handler := told()
		inner := measure
		measure = func(ctx context.Context) error {
			return r.whileConsuming(ctx, fmt.Sprintf("idle%d", i), handler, func(ctx context.Context) error {
				if err := r.wake(ctx, times); err != nil {
					return err
				}
				return inner(ctx)
			})
		}
	}
	return rate, measure(ctx)
}

// commitLate runs transactions that get their row's id before another one, and commit after that one's row was handled,
// or could have been handled.
func (r *result) commitLate(ctx context.Context, a amounts) error {
	var mu sync.Mutex
	seen := map[int]bool{}
	come := make(chan struct{}, 1)
	times, tell := told()
	has := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		return seen[n]
	}
	handler := func(message []byte) {
		tell(message)
		if n, err := number(message); err == nil {
			mu.Lock()
			seen[n] = true
			mu.Unlock()
		}
		select {
		case come <- struct{}{}:
		default:
		}
	}
	// until is whether the row came in time.
	until := func(ctx context.Context, n int, most time.Duration) bool {
		late := time.NewTimer(most)
		defer late.Stop()
		for !has(n) {
			select {
			case <-come:
			case <-late.C:
				return has(n)
			case <-ctx.Done():
				return false
			}
		}
		return true
	}
	wait := 3*time.Second + 3*r.peer.each
	return r.whileConsuming(ctx, "late", handler, func(ctx context.Context) error {
		if err := r.wake(ctx, times); err != nil {
			return err
		}
		for i := range a.late {
			early, late := 1000+2*i, 1001+2*i // what is published before
			commit, err := r.topic.Begin(ctx, payload(late))
			if err != nil {
				return err
			}
			published := make(chan error, 1)
			go func() { published <- r.topic.Publish(ctx, payload(early)) }()
			if !until(ctx, early, wait) {
				r.held++
			}
			if err := errors.Join(commit(), <-published); err != nil {
				return err
			}
			if !until(ctx, early, patience) {
				return errNothingCame
			}
		}
		if r.peer.ours { // on a busy machine too
			wait = patience
		}
		for i := range a.late {
			r.late++
			if !until(ctx, 1001+2*i, wait) {
				r.lost++
				wait = 100 * time.Millisecond // for the first they have all had their time
			}
		}
		return nil
	})
}

// throughput measures one turn: it publishes rows by the hundred, and then lets a group read them all.
func (r *result) throughput(ctx context.Context, a amounts) error {
	messages := make([][]byte, 100)
	for i := range messages {
		messages[i] = payload(i)
	}
	rows := 0
	begun := time.Now()
	for ; rows < a.rows && time.Since(begun) < a.rates; rows += len(messages) {
		if err := r.topic.Publish(ctx, messages...); err != nil {
			return err
		}
	}
	r.publish = append(r.publish, float64(rows)/time.Since(begun).Seconds())
	if r.rows += rows; !r.peer.keeps {
		return nil
	}
	var read atomic.Int64
	some, done := make(chan time.Time, 1), make(chan struct{})
	handler := func([]byte) {
		n := read.Add(1)
		if n == 1 {
			some <- time.Now()
		}
		if n == int64(r.rows) {
			close(done)
		}
	}
	return r.whileConsuming(ctx, fmt.Sprintf("backlog%d", len(r.read)), handler, func(ctx context.Context) error {
		begun := time.Now()
		late := time.NewTimer(a.rates)
		defer late.Stop()
		select {
		case <-done:
		case <-late.C:
			if _, err := receive(ctx, some); err != nil { // a busy machine may have taken all of the time
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		r.read = append(r.read, float64(read.Load())/time.Since(begun).Seconds())
		return nil
	})
}

// step is one of the measurements, and in how many turns it is made.
type step struct {
	what  string
	turns func(a amounts) int
	f     func(*result, context.Context, amounts) error
}

var steps = []step{
	{"latency", func(a amounts) int { return a.turns }, (*result).latency},
	{"late commits", once, (*result).commitLate},
	{"idle statements", once, (*result).idles},
	{"rows a second", func(a amounts) int { return min(a.turns, 3) }, (*result).throughput}, // the last: all others would read them too
}

func once(amounts) int { return 1 }

// measure lets the peers take turns. A peer that waits for its turn has no connections open.
func measure(ctx context.Context, peers []*peer, a amounts, steps []step, say func(what, peer string)) ([]*result, error) {
	results := make([]*result, len(peers))
	for i, p := range peers {
		results[i] = &result{peer: p}
	}
	for _, step := range steps {
		for range step.turns(a) {
			for _, r := range results {
				say(step.what, r.peer.name)
				if err := r.turn(ctx, a, step.f); err != nil {
					return nil, fmt.Errorf("%s: %s: %w", step.what, r.peer.name, err)
				}
			}
		}
	}
	return results, nil
}

func (r *result) turn(ctx context.Context, a amounts, f func(*result, context.Context, amounts) error) (err error) {
	if r.topic, err = r.peer.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.topic.Close()) }()
	return f(r, ctx, a)
}
