package producer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// handshake is the state of a producer with the Mode "handshake".
type handshake struct {
	producer *Producer
	requests chan request
	ready    chan struct{} // closed when Run has begun, or has failed to
	once     sync.Once     // of ready
	rests    time.Duration // the longest wait before it turns again: againLast
	taken    []request     // by the Run under way, and not answered yet

	mu    sync.Mutex
	ended chan struct{} // closed when the Run under way ends; nil when there is none
}

// request is a Publish that waits for its turn.
type request struct {
	rows   []row
	answer chan answer // has room for the one answer, so that Run never waits for its reader
}

type answer struct {
	ids []uint64
	err error
}

const (
	// turnPatience bounds one wait for the lock; another follows.
	turnPatience = 30 * time.Second
	// A turn that no consumer took has woken none. A consumer that was about to wait for
	// the lock would miss the new rows, so the producer turns again, after waits that
	// double from againFirst to againLast, and then rests.
	againFirst, againLast = time.Millisecond, 4096 * time.Millisecond
	// insertPatience bounds the inserts of a turn. A server that takes longer
	// counts as lost.
	insertPatience = 30 * time.Second
)

func newHandshake(p *Producer) *handshake {
	return &handshake{producer: p, requests: make(chan request), ready: make(chan struct{}), rests: againLast}
}

// errTurns says that a transaction of the caller's has no turn.
var errTurns = fmt.Errorf("%w: PublishTx and Transact are not for the Mode %q: use a Producer without it", notify.ErrOptions, modeHandshake)

// Run is the producer's side of the handshake, the protocol as published in 2007, on the lock where a consumer with the Mode
// "handshake" is the other side: one producer and one consumer of a topic alternate. The producer holds the lock while it has
// nothing to say. With messages, which Publish gives it, it inserts them, lets the lock go, which wakes the consumer, and takes it
// again at once, which makes it wait until the consumer is done. What is published meanwhile is inserted together in the
// producer's next turn.
//
// A side that dies loses the lock with its session. Without a consumer the producer's turns follow one another, because rows are
// durable. A second producer waits as a consumer would, and takes turns too. Rows are inserted over the session that holds the
// lock, so that a producer that lost it inserts none unseen.
//
// Run ends with ctx, and returns its cause; a turn under way is finished first. A first connection that fails ends it too; after
// that, it connects again by itself whenever the session is lost. Only one Run at a time. Without the Mode "handshake" the error is
// notify.ErrOptions.
func (p *Producer) Run(ctx context.Context) error {
	if p.handshake == nil {
		return fmt.Errorf("producer: %w: Run is for the Mode %q", notify.ErrOptions, modeHandshake)
	}
	return p.handshake.run(ctx)
}

func (h *handshake) run(ctx context.Context) error {
	defer h.once.Do(func() { close(h.ready) })
	waits := notify.Exponential(50*time.Millisecond, 5*time.Second)
	session, err := core.NewSession(ctx, h.producer.db, core.SessionOptions{})
	if err != nil {
		return h.producer.explain(err)
	}
	ended := make(chan struct{})
	h.mu.Lock()
	if h.ended != nil {
		h.mu.Unlock()
		_ = session.Close()
		return h.producer.explain(errors.New("the handshake runs already"))
	}
	h.ended = ended
	h.mu.Unlock()
	defer func() {
		for _, r := range h.taken {
			r.answer <- answer{err: errNotRunning}
		}
		h.taken = nil
		h.mu.Lock()
		h.ended = nil
		h.mu.Unlock()
		close(ended)
	}()
	h.once.Do(func() { close(h.ready) })
	for {
		if err == nil {
			err = h.serve(ctx, session, waits.Reset)
			_ = session.Close()
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wait := waits.NextBackOff()
		h.producer.log.WarnContext(ctx, "the handshake lost its session and connects again", "in", wait, "error", err)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		session, err = core.NewSession(ctx, h.producer.db, core.SessionOptions{})
	}
}

// serve takes turns over the session until it is lost or ctx ends; begun is called
// with the first of them.
func (h *handshake) serve(ctx context.Context, session *core.Session, begun func()) error {
	lock, err := h.acquire(ctx, session)
	if err == nil {
		begun()
	}
	var again <-chan time.Time
	wait := againFirst
	for err == nil {
		if len(h.taken) == 0 {
			select {
			case first := <-h.requests:
				h.gather(first)
			case <-again:
			case <-lock.Lost():
				return lock.Err()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if len(h.taken) > 0 {
			stored, err := h.insert(ctx, session)
			if err != nil {
				return err
			}
			if !stored {
				continue
			}
			wait = againFirst
		}
		var woke bool
		if woke, err = lock.Pass(ctx, turnPatience); errors.Is(err, notify.ErrNotAcquired) {
			woke = true // a consumer that takes its time
			lock, err = h.acquire(ctx, session)
		}
		again = nil
		if !woke && wait <= h.rests {
			again = time.After(wait)
			wait *= 2
		}
	}
	return err
}

// acquire waits for the lock, however long a consumer takes.
func (h *handshake) acquire(ctx context.Context, session *core.Session) (*core.Lock, error) {
	name := core.HandshakeName(h.producer.db.Name(), h.producer.topic)
	for {
		lock, err := session.Lock(ctx, name, turnPatience)
		if !errors.Is(err, notify.ErrNotAcquired) {
			return lock, err
		}
	}
}

// gather takes the requests that wait by now, as many as one statement takes.
func (h *handshake) gather(first request) {
	h.taken = append(h.taken, first)
	for rows := len(first.rows); rows < h.producer.batch.rows; {
		select {
		case next := <-h.requests:
			h.taken = append(h.taken, next)
			rows += len(next.rows)
		default:
			return
		}
	}
}

// insert commits what was taken, all together, and answers. An error means that
// the session was lost with nothing stored, and leaves it to the next one.
func (h *handshake) insert(ctx context.Context, session *core.Session) (stored bool, err error) {
	// A turn that has begun is finished: cut off, it would leave its callers in doubt.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), insertPatience)
	defer cancel()
	// One message that no packet holds must not fail its neighbours.
	packet := session.Capabilities().MaxAllowedPacket
	h.taken = slices.DeleteFunc(h.taken, func(r request) bool {
		err := fit(r.rows, packet)
		if err != nil {
			r.answer <- answer{err: err}
		}
		return err != nil
	})
	if len(h.taken) == 0 {
		return false, nil
	}
	var rows []row
	for _, r := range h.taken {
		rows = append(rows, r.rows...)
	}
	var ids []uint64
	err = server.Again(ctx, server.Retryable, func() error {
		return session.Do(ctx, func(conn *sqlx.Conn) (err error) {
			ids, _, err = h.producer.commit(ctx, conn.Conn, rows, false)
			return err
		})
	})
	if session.Err() != nil && SafeToRetry(err) {
		return false, err
	}
	for _, r := range h.taken {
		if err != nil {
			r.answer <- answer{err: err}
			continue
		}
		n := len(r.rows)
		r.answer <- answer{ids: ids[:n:n]}
		ids = ids[n:]
	}
	h.taken = nil
	if err != nil {
		return false, nil // told to the callers
	}
	h.producer.Notify(ctx)
	return true, nil
}

// publish hands the messages to Run, and waits until they are committed.
func (h *handshake) publish(ctx context.Context, messages []Message) ([]uint64, error) {
	rows, err := encode(messages)
	if err != nil {
		return nil, err
	}
	select {
	case <-h.ready:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for Run: %w", context.Cause(ctx))
	}
	h.mu.Lock()
	ended := h.ended
	h.mu.Unlock()
	switch {
	case h.producer.closed.Load():
		return nil, notify.ErrClosed
	case ended == nil:
		return nil, errNotRunning
	}
	r := request{rows, make(chan answer, 1)}
	select {
	case h.requests <- r:
	case <-ended:
		return nil, errNotRunning
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the turn: %w", context.Cause(ctx))
	}
	select {
	case a := <-r.answer:
		return a.ids, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", notify.ErrUnknown, context.Cause(ctx))
	}
}
