package bridge

import (
	"context"
	"sync"

	"github.com/mqnotify/mqnotify/consumer"
)

// fake is a destination that fails when the test says so.
type fake struct {
	mu      sync.Mutex
	got     []uint64
	opened  int
	closed  int
	largest int // the size of the largest page
	fail    func(m consumer.Message) error
	wait    func(ctx context.Context)
	after   func() error // of a Send that has confirmed all
}

func (f *fake) destination() *Destination {
	return &Destination{Name: "fake", InFlight: 50, Open: func(context.Context) (Sink, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.opened++
		return &fakeSink{fake: f}, nil
	}}
}

func (f *fake) ids() []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]uint64(nil), f.got...)
}

type fakeSink struct {
	*fake
	once sync.Once
}

func (s *fakeSink) Send(ctx context.Context, messages []consumer.Message) (int, error) {
	if s.wait != nil {
		s.wait(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.largest = max(s.largest, len(messages))
	for i, m := range messages {
		if s.fail != nil {
			if err := s.fail(m); err != nil {
				return i, err
			}
		}
		s.got = append(s.got, m.ID)
	}
	if s.after != nil {
		return len(messages), s.after()
	}
	return len(messages), nil
}

func (s *fakeSink) Close() error {
	s.once.Do(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed++
	})
	return nil
}
