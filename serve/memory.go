package serve

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// memory limits the bytes that requests hold at the same time: published bodies, and rows that were read from a table for one client.
type memory struct {
	*semaphore.Weighted
	size  int64
	waits atomic.Int64
}

func newMemory(size int64) *memory { return &memory{Weighted: semaphore.NewWeighted(size), size: size} }

// bounded returns how many bytes a request of n bytes acquires: all of them if n is larger.
func (m *memory) bounded(n int64) int64 { return min(n, m.size) }

// crowded reports whether a request waits for others to release theirs.
func (m *memory) crowded() bool { return m.waits.Load() > 0 }

// acquire waits until n bytes are free. Meanwhile it calls beat at every tick of often.
func (m *memory) acquire(ctx context.Context, n int64, often <-chan time.Time, beat func() error) error {
	if m.TryAcquire(n) {
		return nil
	}
	m.waits.Add(1)
	defer m.waits.Add(-1)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- m.Acquire(waiting, n) }()
	for {
		select {
		case err := <-got:
			if err != nil {
				return context.Cause(ctx)
			}
			return nil
		case <-often:
			if err := beat(); err != nil {
				cancel()
				if <-got == nil {
					m.Release(n)
				}
				return err
			}
		}
	}
}
