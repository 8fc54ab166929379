package notify

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Keep keeps the gate, for listeners that can't or had better not: because their
// accounts may not read the topic's table, or since they come and go. It takes the
// gate over from a listener, at once or within a second (45 s at most where that sleeps
// until a commit, and this account can't set a flag to make one), and stands by, waiting in the server, while a producer or
// another Keep has it. It blocks until ctx ends or the Gate is closed: then it
// returns nil. It goes on by itself after a lost connection, and logs what it does;
// before it has kept the gate, or stood by, for the first time, it returns ErrNoGate,
// the error of a connection that fails, or that of a table it may not read.
func (g *Gate) Keep(ctx context.Context) error {
	g.mu.Lock()
	if g.done {
		g.mu.Unlock()
		return nil
	}
	g.keeps.Add(1)
	g.mu.Unlock()
	defer g.keeps.Done()
	ctx, cancel := context.WithCancel(ctx)
	var closing sync.WaitGroup
	closing.Go(func() {
		select {
		case <-g.closed:
			cancel()
		case <-ctx.Done():
		}
	})
	defer closing.Wait()
	defer cancel()
	waits := Exponential(20*time.Millisecond, 5*time.Second)
	for reached := false; ; {
		begun, works := time.Now(), false
		err := g.gate.keepOn(ctx, &works)
		reached = reached || works
		if ctx.Err() != nil {
			return nil // how Keep is stopped
		}
		if !reached {
			return err
		}
		level := slog.LevelDebug
		if works { // until now
			level = slog.LevelWarn
		}
		g.gate.log.Log(ctx, level, "lost the gate; it goes on by itself", "error", err)
		if time.Since(begun) > time.Minute {
			waits.Reset()
		}
		wait := waits.NextBackOff()
		if errors.Is(err, ErrNoGate) {
			wait = impossible
		}
		pause(ctx, wait)
	}
}

// keepOn claims the gate, and keeps it, for as long as one session lives. works tells
// that it came as far as that, or as standing by.
func (g *gate) keepOn(ctx context.Context, works *bool) error {
	session, release, err := g.session(ctx, g.options.KeeperTimeout)
	if err != nil {
		return err
	}
	defer release()
	defer g.db.endWith(ctx, session)()
	work := context.WithoutCancel(ctx)
	claim, err := session.TryLock(work, g.names.claim())
	if errors.Is(err, ErrNotAcquired) {
		*works = true
		g.log.InfoContext(ctx, "stands by: another keeps the gate")
	}
	for errors.Is(err, ErrNotAcquired) {
		claim, err = session.Lock(work, g.names.claim(), parked)
	}
	waits := &Fibonacci{Min: 5 * time.Millisecond, Max: 25 * time.Millisecond} // as in bell
	door := knocker{session: session}
	for err == nil && ctx.Err() == nil {
		var lock *Lock
		lock, err = session.TryLock(work, g.names.keeper())
		switch {
		case errors.Is(err, ErrNotAcquired): // by a listener, who hands over when he sees the claim
			door.knock(work)
			err = session.Err()
			pause(ctx, waits.NextBackOff())
		case err == nil:
			waits.Reset()
			err = g.keep(ctx, session, lock, claim, func() {
				*works = true
				g.log.InfoContext(ctx, "keeps the gate", "session", session.ID())
			})
		}
	}
	return err
}
