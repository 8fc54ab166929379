package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/deadletter"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// shell is the reconnect shell around sinks: it lives as long as a Run, each sink as
// long as its connection.
type shell struct {
	*Bridge
	sink  Sink // nil when there is none
	waits backoff.BackOff
	// most is how many messages the next Send gets: one after a failure, so that it is
	// known whose failure it is, and then twice as many each time.
	most  int
	tries int // of the message in hand, that the destination refused
	// recent are the ids that were confirmed and whose offset may not be stored: they come
	// again when the database went away in between.
	recent idSet
	meter
}

func (s *shell) open(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.SendTimeout,
		fmt.Errorf("no answer within %v", s.options.SendTimeout))
	defer cancel()
	if s.sink, err = s.to.Open(ctx); err != nil {
		s.sink = nil
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return err
	}
	s.most = max(1, s.most)
	return nil
}

// close ends the sink's connection: what was not confirmed is sent again.
func (s *shell) close() {
	if s.sink != nil {
		_ = s.sink.Close()
		s.sink = nil
	}
}

// deliver sends a page. ctx is Run's, after whose end nothing new is begun; handling is
// the handler's, which ends later, or when the group's lock is lost.
func (s *shell) deliver(ctx, handling context.Context, messages []consumer.Message) error {
	s.begin(handling)
	// A page comes when the offset past the one before is stored, or instead of it.
	if !slices.ContainsFunc(messages, s.wasConfirmed) {
		s.recent.clear()
	}
	for done := 0; done < len(messages); {
		if s.wasConfirmed(messages[done]) {
			done++
			continue
		}
		if ctx.Err() != nil {
			return consumer.Handled(done, context.Cause(ctx))
		}
		n, err := s.send(handling, messages[done:])
		for _, m := range messages[done : done+n] {
			s.recent.add(m)
		}
		done += n
		s.sent += n
		if n > 0 {
			s.waits.Reset()
			s.tries = 0
		}
		switch {
		case err == nil:
			continue
		case handling.Err() != nil:
			return consumer.Handled(done, context.Cause(handling))
		}
		passed, err := s.failed(ctx, handling, messages[done], err)
		if err != nil {
			return consumer.Handled(done, err)
		}
		if passed {
			s.recent.add(messages[done])
			done++
			s.dead++
			s.tries = 0
		}
	}
	s.report(messages[0].ID, messages[len(messages)-1].ID)
	return nil
}

func (s *shell) wasConfirmed(m consumer.Message) bool { return s.recent.has(m.ID) }

// idSet are a page's ids, nearly always in order.
type idSet struct {
	ids     []uint64
	largest uint64
}

func (s *idSet) add(m consumer.Message) {
	s.ids, s.largest = append(s.ids, m.ID), max(s.largest, m.ID)
}

func (s *idSet) clear() { s.ids, s.largest = s.ids[:0], 0 }

// has reports whether the id is in the set. It costs nothing for larger ids, such as those of the next page.
func (s *idSet) has(id uint64) bool { return id <= s.largest && slices.Contains(s.ids, id) }

// send gives the sink some of the messages.
func (s *shell) send(handling context.Context, messages []consumer.Message) (int, error) {
	if s.sink == nil {
		if err := s.open(handling); err != nil {
			return 0, err
		}
	}
	most := min(s.most, s.options.InFlight, len(messages))
	if again := slices.IndexFunc(messages[:most], s.wasConfirmed); again > 0 {
		most = again
	}
	ctx, cancel := context.WithTimeoutCause(handling, s.options.SendTimeout,
		fmt.Errorf("not confirmed within %v", s.options.SendTimeout))
	defer cancel()
	n, err := s.sink.Send(ctx, messages[:most])
	if err == nil {
		s.most = min(2*s.most, s.options.InFlight)
		return n, nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	s.close()
	s.most = 1
	return n, err
}

// failed waits for another try, or says that the message is passed by: it is a dead letter now.
func (s *shell) failed(ctx, handling context.Context, m consumer.Message, err error) (passed bool, _ error) {
	var end *PermanentError
	if errors.As(err, &end) {
		return false, &endError{fmt.Errorf("bridge: send to %s: %w", s.to.Name, err)}
	}
	wait := s.waits.NextBackOff()
	var refused *PoisonError
	if errors.As(err, &refused) {
		if s.tries++; s.tries >= s.options.MaxAttempts || wait == backoff.Stop {
			return s.deadLetter(handling, m, err)
		}
	} else if wait == backoff.Stop {
		return false, &endError{fmt.Errorf("bridge: send to %s: %w", s.to.Name, err)}
	}
	var later *LaterError
	if errors.As(err, &later) {
		wait = max(wait, later.After)
	}
	s.options.Logger.WarnContext(ctx, "not sent; tries again by itself", "topic", s.topic, "id", m.ID, "error", err, "wait", wait)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-handling.Done():
		return false, context.Cause(handling)
	}
}

// deadLetter gives a refused message to the dead letters. The offset is stored after that:
// a crash in between stores it again, over the same letter.
func (s *shell) deadLetter(ctx context.Context, m consumer.Message, err error) (bool, error) {
	if s.options.StopOnPoison {
		return false, &endError{fmt.Errorf("bridge: send to %s: %w", s.to.Name, err)}
	}
	s.options.Logger.ErrorContext(ctx, "message goes to the dead letters", "topic", s.topic, "id", m.ID, "attempts", s.tries, "error", err)
	err = deadletter.Write(ctx, s.db.Pool(), deadletter.Letter{
		Topic: m.Topic, Group: s.options.Consumer.Group, ID: m.ID, Headers: m.Headers, Payload: m.Payload, Attempts: s.tries, Cause: err,
	})
	if err != nil {
		s.tries-- // tried again once the database is back
		if server.Is(err, server.ErrNoSuchTable) {
			return false, &endError{fmt.Errorf("bridge: write dead letter: %w", notify.ErrNoState)}
		}
		return false, fmt.Errorf("bridge: write dead letter: %w", err)
	}
	return true, nil
}
