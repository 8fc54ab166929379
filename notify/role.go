package notify

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// role is what a process does for a topic while anybody in it wants that.
type role struct {
	run func(ctx context.Context)

	mu     sync.Mutex
	users  int
	cancel context.CancelFunc
	ended  chan struct{}
}

func (r *role) join() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users++; r.users > 1 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	before, ended := r.ended, make(chan struct{})
	r.cancel, r.ended = cancel, ended
	go func() {
		defer close(ended)
		if before != nil {
			<-before
		}
		r.run(ctx)
	}()
}

// leave returns when the role is ended, if it was the last who wanted it.
func (r *role) leave() {
	r.mu.Lock()
	if r.users--; r.users > 0 {
		r.mu.Unlock()
		return
	}
	r.cancel()
	ended := r.ended
	r.mu.Unlock()
	<-ended
}

func (r *role) wanted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.users > 0
}

// impossible is how long a process waits before it tries again where it found that
// no gate is possible.
const impossible = 30 * time.Second

// persist runs f again and again, until ctx ends, with waits after an error, which is
// told.
func (g *gate) persist(ctx context.Context, tell func(*gateState, error), f func(ctx context.Context) error) {
	waits := Exponential(20*time.Millisecond, 5*time.Second)
	for ctx.Err() == nil {
		begun := time.Now()
		before, _ := g.now()
		err := f(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		level := slog.LevelDebug
		if after, _ := g.now(); after.wakes != before.wakes && !errors.Is(err, ErrNoGate) { // it worked until now
			level = slog.LevelWarn
		}
		g.log.Log(ctx, level, "lost the gate; it goes on by itself", "error", err)
		g.update(func(s *gateState) { tell(s, err) })
		if time.Since(begun) > time.Second {
			waits.Reset()
		}
		wait := waits.NextBackOff()
		if errors.Is(err, ErrNoGate) {
			wait = impossible
		}
		pause(ctx, wait)
	}
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
