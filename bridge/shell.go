package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/dberror"
	"github.com/mqnotify/mqnotify/internal/deadletter"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// shell reconnects: there is one for each Run, and a sink for each connection.
type shell struct {
	*Bridge
	sink  Sink // nil if there is no connection
	waits backoff.BackOff
	fails bool // the last Send confirmed nothing
	// most limits the messages of the next Send. It is one after a failure, to find the message that fails, and then doubles.
	most  int
	tries int // how often the destination has refused the message in hand
	// recent has the confirmed ids whose offset may not be stored. The consumer delivers them again if the database was away meanwhile.
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

// close ends the sink's connection. Unconfirmed messages are sent again.
func (s *shell) close() {
	if s.sink != nil {
		_ = s.sink.Close()
		s.sink = nil
	}
}

// deliver sends a page. ctx is Run's: after its end deliver begins no further Send. handling is the handler's context, which ends later,
// or when the group's lock is lost.
func (s *shell) deliver(ctx, handling context.Context, messages []consumer.Message) error {
	s.begin(handling)
	// The consumer delivers a new page after it has stored the offset past the previous one. Otherwise it delivers messages again.
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
			s.fails, s.tries = false, 0
		}
		switch {
		case err == nil, done == len(messages): // an error after the last confirmation is about no message
			continue
		case handling.Err() != nil:
			return consumer.Handled(done, context.Cause(handling))
		}
		passed, err := s.failed(ctx, handling, messages[done], err)
		if err != nil {
			return consumer.Handled(done, err)
		}
		if passed { // not recent, because the row may come again when its dead letter is retried
			done++
			s.dead++
			s.tries = 0
		}
	}
	s.report(messages[0].ID, messages[len(messages)-1].ID)
	return nil
}

func (s *shell) wasConfirmed(m consumer.Message) bool { return s.recent.has(m.ID) }

// idSet is a set of a page's ids.
type idSet struct {
	ids     []uint64
	largest uint64
}

func (s *idSet) add(m consumer.Message) {
	s.ids, s.largest = append(s.ids, m.ID), max(s.largest, m.ID)
}

func (s *idSet) clear() { s.ids, s.largest = s.ids[:0], 0 }

// has reports whether the id is in the set. It is fast for ids larger than all in the set, such as those of the next page.
func (s *idSet) has(id uint64) bool { return id <= s.largest && slices.Contains(s.ids, id) }

// send sends some of the messages, and returns how many were confirmed.
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

// failed handles a failed Send. It waits before the next attempt, or stores the refused message as a dead letter and returns true.
func (s *shell) failed(ctx, handling context.Context, m consumer.Message, err error) (passed bool, _ error) {
	var end *PermanentError
	var refused *PoisonError
	if m.IsRetry() && (errors.As(err, &end) || errors.As(err, &refused)) {
		return false, fmt.Errorf("%w: %w", notify.ErrDead, err) // the consumer keeps the dead letter, with this error
	}
	if errors.As(err, &end) {
		return false, &endError{fmt.Errorf("bridge: send to %s: %w", s.to.Name, err)}
	}
	if !s.fails { // a limit of Retry counts from now on
		s.fails = true
		s.waits.Reset()
	}
	wait := s.waits.NextBackOff()
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
	s.options.Logger.WarnContext(ctx, "not sent; trying again", "topic", s.topic, "id", m.ID, "error", err, "wait", wait)
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

// deadLetter stores a refused message as a dead letter. The offset is stored afterwards: after a crash in between the next bridge
// overwrites the dead letter.
func (s *shell) deadLetter(ctx context.Context, m consumer.Message, err error) (bool, error) {
	if s.options.StopOnPoison {
		return false, &endError{fmt.Errorf("bridge: send to %s: %w", s.to.Name, err)}
	}
	s.options.Logger.ErrorContext(ctx, "the message goes to the dead letters", "topic", s.topic, "id", m.ID, "attempts", s.tries, "error", err)
	err = s.bury(ctx, deadletter.Letter{
		Topic: m.Topic, Group: s.options.Consumer.Group, ID: m.ID, Headers: m.Headers, Payload: m.Payload, IsRow: m.IsRow, Attempts: s.tries, Cause: err,
	})
	if err != nil {
		s.tries-- // deadLetter is called again when the database is back
		ends := server.Permanent(err)
		err = fmt.Errorf("bridge: write dead letter: %w", dberror.Explain(err, "message", "consumer"))
		if ends { // a retry would send the message again and again
			err = &endError{err}
		}
		return false, err
	}
	return true, nil
}

// bury writes a dead letter in a transaction, because Write may need several statements.
func (s *shell) bury(ctx context.Context, letter deadletter.Letter) error {
	tx, err := s.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := deadletter.Write(ctx, tx, letter); err != nil {
		return err
	}
	return tx.Commit()
}
