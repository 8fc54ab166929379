package producer

import (
	"cmp"
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
	ready    chan struct{} // closed when Run has begun or failed to begin
	once     sync.Once     // closes ready
	rests    time.Duration // the longest wait between two repeated turns: againLast
	taken    []request     // taken by the current Run and not answered yet
	together int           // the most requests of the next commit, because more took too long; 0 means no limit
	patience time.Duration // insertPatience

	mu    sync.Mutex
	ended chan struct{} // closed when the current Run ends; nil if none runs
}

// request is a call of Publish that waits for its turn.
type request struct {
	rows   []row
	answer chan answer // has capacity 1, so that Run never waits for the caller
}

type answer struct {
	ids []uint64
	err error
}

const (
	// turnPatience bounds one attempt to get the lock; another attempt follows.
	turnPatience = 30 * time.Second
	// A turn wakes no consumer if none waits for the lock. A consumer that was about to wait for
	// it would miss the new rows. The producer therefore repeats the turn, after waits that
	// double from againFirst to againLast, and then stops.
	againFirst, againLast = time.Millisecond, 4096 * time.Millisecond
	// insertPatience bounds the inserts of a turn. A server that takes longer counts as lost. A session that has a lock may not be
	// busy for longer: see core.Session.Do.
	insertPatience = 12 * time.Second
)

func newHandshake(p *Producer) *handshake {
	return &handshake{producer: p, requests: make(chan request), ready: make(chan struct{}), rests: againLast, patience: insertPatience}
}

// errTurns refuses a transaction of the caller, because Run does not control when it commits.
var errTurns = fmt.Errorf("%w: PublishTx and Transact do not work with the Mode %q: use a Producer without it", notify.ErrOptions, modeHandshake)

// Run is the producer's side of the handshake, a protocol published in 2007. The other side is a consumer with the Mode "handshake".
// One producer and one consumer of a topic alternate on a lock. The producer holds the lock while it has no messages. When Publish
// hands it messages, it inserts them and releases the lock, which wakes the consumer. It asks for the lock again at once,
// and so waits until the consumer is done. Messages that are published in the meantime are inserted together in the producer's next
// turn.
//
// A side that dies loses the lock with its session. Without a consumer the producer's turns follow one another, because the rows are
// durable. A second producer waits as a consumer would, and takes turns too. The session that holds the lock inserts the rows, so a
// producer that has lost the lock can't insert unnoticed.
//
// Run returns the cause of ctx when ctx ends; it finishes the current turn first. A failed first connection also ends it. Later, it
// reconnects by itself whenever the session is lost. Only one Run of a Producer at a time. Without the Mode "handshake" the error is
// notify.ErrOptions.
func (p *Producer) Run(ctx context.Context) error {
	if p.handshake == nil {
		return fmt.Errorf("producer: %w: Run needs the Mode %q", notify.ErrOptions, modeHandshake)
	}
	return p.handshake.run(ctx)
}

func (h *handshake) run(ctx context.Context) error {
	defer h.once.Do(func() { close(h.ready) })
	waits := notify.Exponential(50*time.Millisecond, 5*time.Second)
	session, err := core.NewHandshakeSession(ctx, h.producer.db)
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
		h.producer.log.WarnContext(ctx, "the handshake lost its session and reconnects", "in", wait, "error", err)
		if ended := server.Pause(ctx, wait); ended != nil {
			return ended
		}

		session, err = core.NewHandshakeSession(ctx, h.producer.db)
	}
}

// serve takes turns over the session until it is lost or ctx ends. It calls begun when it has the lock for the first time.
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
			woke = true // a slow consumer has the lock
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

// acquire waits for the lock without a bound, because a consumer may take long.
func (h *handshake) acquire(ctx context.Context, session *core.Session) (*core.Lock, error) {
	caps := session.Capabilities()
	name := core.HandshakeName(core.Folded(caps, h.producer.db.Name()), core.Folded(caps, h.producer.topic))
	for {
		lock, err := session.Lock(ctx, name, turnPatience)
		if !errors.Is(err, notify.ErrNotAcquired) {
			return lock, err
		}
	}
}

// gather takes the requests that wait now, up to the limit of rows of a statement.
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

// insert commits the taken requests, together unless the server refuses a row, and answers them. An error means that the session was lost;
// the requests that were not stored then stay for the next session.
func (h *handshake) insert(ctx context.Context, session *core.Session) (stored bool, err error) {
	// A turn that has begun is finished even if ctx ends. Its callers would otherwise get ErrUnknown.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), h.patience, fmt.Errorf("the messages take longer than %v", h.patience))
	defer cancel()
	// A message that fits into no packet must not fail the other requests.
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
	together := cmp.Or(h.together, len(h.taken))
	for len(h.taken) > 0 {
		some := h.taken[:min(together, len(h.taken))]
		var rows []row
		for _, r := range some {
			rows = append(rows, r.rows...)
		}
		var ids []uint64
		err := server.Again(ctx, server.Retryable, func() error {
			return session.Do(ctx, func(conn *sqlx.Conn) (err error) {
				ids, _, err = h.producer.commit(ctx, conn.Conn, rows, false)
				return err
			})
		})
		switch {
		case (session.Err() != nil || ctx.Err() != nil) && SafeToRetry(err): // the time may end between two commits
			if ctx.Err() != nil && !stored {
				h.slow(len(some), fmt.Errorf("%w: %w", context.Cause(ctx), err))
			}
			return false, err
		case len(some) > 1 && server.Number(err) != 0 && !server.Retryable(err): // the server refuses a row, which must not fail the others
			together = 1
			continue
		}
		for _, r := range some {
			if err != nil {
				r.answer <- answer{err: err}
				continue
			}
			n := len(r.rows)
			r.answer <- answer{ids: ids[:n:n]}
			ids = ids[n:]
		}
		stored = stored || err == nil
		h.taken = h.taken[len(some):]
	}
	h.taken, h.together = nil, 0
	if stored {
		h.producer.Notify(ctx)
	}
	return stored, nil // the callers have the errors
}

// slow makes the next session commit fewer requests together, because these took too long. If it was one request, it fails.
func (h *handshake) slow(requests int, err error) {
	if h.together = max(1, requests/2); requests == 1 {
		h.taken[0].answer <- answer{err: err}
		h.taken = h.taken[1:]
	}
}

// publish hands the messages to Run, and waits until they are committed.
func (h *handshake) publish(ctx context.Context, messages []Message) ([]uint64, error) {
	rows, err := encode(messages)
	if err != nil {
		return nil, err
	}
	if h.producer.closed.Load() {
		return nil, notify.ErrClosed
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
