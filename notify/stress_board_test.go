package notify_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/notify"
)

// stressTopic has no table: its gate wakes for rings alone. The rows are in orders.
const stressTopic = "stress"

var stressOptions = notify.GateOptions{
	Look:          func() backoff.BackOff { return backoff.NewConstantBackOff(20 * time.Millisecond) },
	KeeperTimeout: short,
	Logger:        slog.New(slog.DiscardHandler),
}

// stressBoard is where listeners note what they have seen.
type stressBoard struct {
	inserts atomic.Int64  // rows that rang
	newest  atomic.Uint64 // the largest id whose commit has returned
	round   atomic.Uint64 // goes up before a round's last row is sent

	inserting sync.RWMutex // whoever is woken by an Insert knows its row

	mu        sync.Mutex
	listeners []*stressListener
	last      uint64 // the id of the round's last row, 0 until its commit has returned
	all       chan struct{}
}

// stressListener reads, waits, and reads again.
type stressListener struct {
	board   *stressBoard
	process int
	db      *notify.DB
	gate    *notify.Gate
	read    func(ctx context.Context) (uint64, error)

	// Under the board's mu.
	away  bool   // nobody waits for it
	seen  uint64 // the largest id
	began uint64 // the round in which the wait began that found it
}

// committed notes a row.
func (b *stressBoard) committed(id uint64) {
	for {
		newest := b.newest.Load()
		if newest >= id || b.newest.CompareAndSwap(newest, id) {
			return
		}
	}
}

// known is what a read of the table would find, without a statement: with it a
// process can have many listeners.
func (b *stressBoard) known(context.Context) (uint64, error) {
	b.inserting.RLock()
	defer b.inserting.RUnlock()
	return b.newest.Load(), nil
}

// largest reads the table.
func largest(db *notify.DB) func(ctx context.Context) (uint64, error) {
	return func(ctx context.Context) (uint64, error) {
		return persistently(ctx, func(ctx context.Context) (id uint64, err error) {
			err = db.Pool().GetContext(ctx, &id, "SELECT COALESCE(MAX(id), 0) FROM orders")
			return id, err
		})
	}
}

// expect returns a channel that is closed when all listeners have seen the row.
func (b *stressBoard) expect(id uint64) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(chan struct{})
	b.last, b.all = id, all
	b.check()
	return all
}

// check closes the channel if it is time; the caller has mu.
func (b *stressBoard) check() {
	if b.all == nil {
		return
	}
	for _, l := range b.listeners {
		if !l.away && l.seen < b.last {
			return
		}
	}
	close(b.all)
	b.all = nil
}

// note says what the listener found after a wait that began in the round.
func (l *stressListener) note(id, began uint64) {
	l.board.mu.Lock()
	defer l.board.mu.Unlock()
	if id > l.seen {
		l.seen, l.began = id, began
		l.board.check()
	}
}

// run listens until ctx ends or something fails.
func (l *stressListener) run(ctx context.Context) error {
	defer l.gate.Close()
	head, err := persistently(ctx, l.gate.Head)
	for began := l.board.round.Load(); err == nil; {
		var id uint64
		if id, err = l.read(ctx); err != nil {
			break
		}
		l.note(id, began)
		if random().IntN(50) == 0 { // a slow handler
			pauseFor(ctx, within(50*time.Millisecond>>random().IntN(8)))
		}
		began = l.board.round.Load()
		head, err = l.gate.Wait(ctx, head, time.Hour)
	}
	return err
}

// stressProducer commits rows and rings, leaves and joins.
type stressProducer struct {
	busy    sync.Mutex
	db      *notify.DB
	options notify.GateOptions
	gate    *notify.Gate // nil while it has left
	before  int          // rings of earlier gates
}

func newStressProducer(db *notify.DB, options notify.GateOptions) *stressProducer {
	return &stressProducer{db: db, options: options}
}

// join takes part again, however often its sessions are killed meanwhile.
func (p *stressProducer) join(ctx context.Context) {
	p.leave()
	p.gate = notify.NewGate(p.db, stressTopic, p.options)
	_, _ = persistently(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, p.gate.Join(ctx) })
}

// send commits a row and rings, mostly in one packet if that can be, and
// returns the row's id.
func (p *stressProducer) send(ctx context.Context, board *stressBoard) uint64 {
	if p.gate != nil && random().IntN(8) > 0 {
		if id := p.insert(ctx, board); id != 0 {
			return id
		}
	}
	id := p.commit(ctx)
	board.committed(id)
	p.ring(id)
	return id
}

func (p *stressProducer) insert(ctx context.Context, board *stressBoard) uint64 {
	board.inserting.Lock()
	defer board.inserting.Unlock()
	stored, ok, err := p.gate.Insert(ctx, 1, "INSERT INTO orders (payload) VALUES ('x')")
	if !ok || err != nil {
		return 0
	}
	board.committed(stored.First)
	board.inserts.Add(1)
	return stored.First
}

// ring joins by itself if need be.
func (p *stressProducer) ring(id uint64) {
	if p.gate == nil {
		p.gate = notify.NewGate(p.db, stressTopic, p.options)
	}
	p.gate.Ring(id)
}

func (p *stressProducer) leave() {
	if p.gate != nil {
		p.before += int(p.gate.Rung())
		_ = p.gate.Close()
		p.gate = nil
	}
}

// rings is how often the producer rang as a keeper.
func (p *stressProducer) rings() int {
	if p.gate == nil {
		return p.before
	}
	return p.before + int(p.gate.Rung())
}

// commit inserts a row and returns its id.
func (p *stressProducer) commit(ctx context.Context) uint64 {
	id, _ := persistently(ctx, func(ctx context.Context) (int64, error) {
		result, err := p.db.Pool().ExecContext(ctx, "INSERT INTO orders (payload) VALUES ('x')")
		if err != nil {
			return 0, err
		}
		return result.LastInsertId()
	})
	return uint64(id)
}

// killSession kills a session, or its statement, if it is still there.
func killSession(ctx context.Context, admin *sql.DB, id uint64) {
	what := []string{"CONNECTION", "QUERY"}[random().IntN(2)]
	_, _ = admin.ExecContext(ctx, fmt.Sprintf("KILL %s %d", what, id))
}

// persistently tries again after an error, as that of a session that was killed.
func persistently[T any](ctx context.Context, f func(ctx context.Context) (T, error)) (T, error) {
	for {
		found, err := f(ctx)
		if err == nil || ctx.Err() != nil || errors.Is(err, notify.ErrNoGate) {
			return found, err
		}
		pauseFor(ctx, tick)
	}
}

// arrived tells whether all is closed, after limit at the latest.
func arrived(ctx context.Context, all <-chan struct{}, limit time.Duration) bool {
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-all:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	return false
}

func pauseFor(ctx context.Context, d time.Duration) { arrived(ctx, nil, d) }
