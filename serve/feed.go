package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/position"
)

// item is a message for one client.
type item struct {
	json   []byte // shared with other clients, unless it was read from the table
	cursor string // the client's cursor after this message
	seq    uint64 // its number in the hub's order; 0 if it was read from the table
}

// size returns about how many bytes of memory the item takes, and how many bytes its event has.
func (i item) size() int { return len(i.json) + 2*len(i.cursor) + len("id: \ndata: \n\n") }

// feed gives one client each message once: first the messages that it lacks, then the new ones.
//
// A cursor is a position.Progress: a watermark up to which the client has every row, and the ids above it that the client has. A row
// that commits late is not in the cursor, so the client also gets it after a resume.
//
// A client joins at one moment. It gets the messages that it lacks of all that the hub has delivered until then, from the hub's kept
// events or from the table, and after that the hub's events since that moment.
type feed struct {
	hub *hub
	seq uint64 // the last event that the client was given
	// ahead, if not nil, is the progress of the client's cursor. It may have ids that this hub has not read yet, because another
	// server's hub was faster.
	ahead *position.Progress
	items []item // the result of the last next
	// beat is called at every tick of often while the client waits for the hub's beginning or for other clients that read the table,
	// unless the client's cursor may still be refused. With a nil often it is never called.
	often <-chan time.Time
	beat  func() error

	held int64 // bytes of Options.MaxMemory
	poll bool  // the client is a poll, which keeps its items until release
}

// cursorError means that the server can't resume from a cursor.
type cursorError struct{ error }

func (e cursorError) Unwrap() error { return e.error }

// begun waits until the hub has begun.
func (f *feed) begun(ctx context.Context) error {
	for {
		select {
		case <-f.hub.begun:
			return nil
		case <-f.often:
			if err := f.beat(); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// join gives the client the messages that its progress lacks, and returns the client's cursor. A nil progress means that the client
// begins now. An error of give ends the join.
func (f *feed) join(ctx context.Context, from *position.Progress, give func([]item) error) (cursor string, err error) {
	at, err := f.hub.now(ctx)
	if err != nil {
		return "", err
	}
	if from == nil {
		f.seq = at.seq
		return at.cursor, nil
	}
	if at, err = f.caughtUp(ctx, from.Settled); err != nil {
		return "", err
	}
	has := from.Clone()
	f.ahead = from
	events, at, ok := f.hub.kept(&has)
	if ok {
		f.seq = at.seq
		err = f.missed(events, &has, &at, give)
		has = has.Union(&at.progress) // the client may have ids that the hub does not have
		return has.Text(maxRuns), err
	}
	for {
		if err := f.backfill(ctx, &has, &at.progress, give); err != nil {
			return "", err
		}
		f.seq = at.seq
		if _, _, err := f.hub.since(at.seq); err == nil {
			return has.Text(maxRuns), nil
		}
		// The backfill took so long that the hub does not keep all messages that arrived meanwhile.
		if at, err = f.hub.now(ctx); err != nil {
			return "", err
		}
	}
}

// missed gives the client the hub's kept events, a piece at a time. It returns errBehind if the client reads them so slowly that it
// falls behind.
func (f *feed) missed(events []event, has *position.Progress, at *snapshot, give func([]item) error) error {
	for len(events) > 0 {
		var items []item
		for size := 0; len(events) > 0 && size < piece; events = events[1:] {
			advance(has, &at.progress, events[0].id)
			items = append(items, item{events[0].json, has.Text(maxRuns), events[0].seq})
			size += events[0].size()
		}
		if err := give(items); err != nil {
			return err
		}
		if _, _, err := f.hub.since(at.seq); err != nil {
			return err
		}
	}
	return nil
}

// caughtUp waits until the hub has read the id, because another server's hub may have been faster. It does not wait if the table's next
// id is larger, because the newest rows may have been deleted.
func (f *feed) caughtUp(ctx context.Context, id uint64) (snapshot, error) {
	at, err := f.hub.now(ctx)
	if err != nil || id <= at.progress.Largest() {
		return at, err
	}
	// No heartbeats, because the cursor may still be refused.
	err = f.read(ctx, nil, id, func([]consumer.Message) error { return consumer.ErrStop }, func() error { return nil })
	if !errors.Is(err, consumer.ErrBelowOffset) {
		return at, err
	}
	// The hub may read a replica that is behind: wait.
	late := time.NewTimer(f.hub.options.patience)
	defer late.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		at, err := f.hub.now(ctx)
		if err != nil || id <= at.progress.Largest() {
			return at, err
		}
		select {
		case <-tick.C:
		case <-late.C:
			return at, cursorError{fmt.Errorf("the cursor is at %d and the topic's largest id is %d: if the table was emptied, begin again without a cursor",
				id, at.progress.Largest())}
		case <-ctx.Done():
			return at, context.Cause(ctx)
		}
	}
}

// advance records that the client has all of the hub's messages up to id.
func advance(has, hub *position.Progress, id uint64) {
	has.Settle(min(id, hub.Settled))
	has.Add(id)
}

// errFull ends the answer to a poll.
var errFull = errors.New("enough")

// acquire waits for memory, and returns how many bytes it has acquired. A poll that holds memory already does not wait, because others
// may wait for its memory.
func (f *feed) acquire(ctx context.Context, from *memory, size int64, often <-chan time.Time) (n int64, err error) {
	n = from.bounded(size)
	if f.held == 0 {
		return n, from.acquire(ctx, n, often, f.beat)
	}
	if !from.TryAcquire(n) {
		return 0, errFull
	}
	return n, nil
}

// hold waits for memory for this client's items, which release returns.
func (f *feed) hold(ctx context.Context, size int) error {
	n, err := f.acquire(ctx, f.hub.options.memory, int64(size), f.often)
	if err == nil {
		f.held += n
	}
	return err
}

func (f *feed) release() {
	f.hub.options.memory.Release(f.held)
	f.held = 0
}

// portion is about how many bytes are read from the table for a client at a time. The client gets them after its permit to read was
// released, so every slow client has a portion in memory, which hold counts.
const portion = 4 * piece

// backfill reads from the table the messages that the hub has and the client lacks.
func (f *feed) backfill(ctx context.Context, has, hub *position.Progress, give func([]item) error) error {
	f.hub.metrics.backfills.Inc()
	end := hub.Largest()
	for after, full := has.Settled, true; full; {
		full = false
		var items []item
		size := 0
		err := f.read(ctx, f.often, after, func(messages []consumer.Message) error {
			for _, m := range messages {
				if full = size >= portion; full || m.ID > end {
					return consumer.ErrStop
				}
				after = m.ID
				if has.Has(m.ID) || !hub.Has(m.ID) {
					continue
				}
				line, err := m.MarshalJSON()
				if err != nil {
					return err
				}
				f.hub.saw(len(line))
				advance(has, hub, m.ID)
				items = append(items, item{json: line, cursor: has.Text(maxRuns)})
				size += items[len(items)-1].size()
			}
			return nil
		}, func() error { return f.hold(ctx, size) })
		if err == nil {
			err = give(items)
		}
		if !f.poll {
			f.release()
		}
		if err != nil {
			return err
		}
	}
	// The client has all that is in hub now. Later messages are for the next round.
	*has = has.Union(hub)
	return nil
}

const (
	// reading limits the bytes that all reads of tables for clients take at the same time, until hold counts the result.
	reading = 32 << 20
	// oneRead is how many bytes a read of a page takes. If a message is larger than a fourth of it, the read takes four times the
	// message: in the connection's buffer, in its page, in the page that is read meanwhile, and as JSON.
	oneRead = 4 << 20
)

// permit waits until this client may read the table, because all clients may reconnect at once.
func (f *feed) permit(ctx context.Context, often <-chan time.Time) (leave func(), err error) {
	permits := f.hub.options.reading
	n, err := f.acquire(ctx, permits, max(oneRead, 4*f.hub.largest.Load()), often)
	if err != nil {
		return nil, err
	}
	return func() { permits.Release(n) }, nil
}

// read passes the rows above an id to take, a page at a time, until take returns consumer.ErrStop. It calls last before it releases its
// permit, so that the memory that clients have not counted yet is limited.
func (f *feed) read(ctx context.Context, often <-chan time.Time, after uint64, take func([]consumer.Message) error, last func() error) error {
	leave, err := f.permit(ctx, often)
	if err != nil {
		return err
	}
	defer leave()
	c, err := consumer.New(f.hub.db, f.hub.topic, consumer.Options{
		From:      strconv.FormatUint(max(after, after+1), 10), // the largest number has no successor
		StopAtEnd: true, Logger: f.hub.options.Logger, MaxAttempts: 1,
	})
	if err != nil {
		return err
	}
	err = c.Run(ctx, consumer.Batch(func(_ context.Context, messages []consumer.Message) error { return take(messages) }))
	var failed *consumer.HandlerError
	if errors.As(err, &failed) {
		return failed.Err
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = last()
	}
	if errors.Is(err, consumer.ErrBelowOffset) {
		return cursorError{err}
	}
	return err
}

// next returns some of the following messages, which are valid until the next call, and a channel that is closed when the hub gets
// further ones.
func (f *feed) next() (items []item, more <-chan struct{}, err error) {
	events, more, err := f.hub.since(f.seq)
	if err != nil {
		return nil, nil, err
	}
	clear(f.items) // release their memory
	f.items = f.items[:0]
	for size := 0; len(events) > 0 && size < piece; events = events[1:] {
		e := events[0]
		f.seq = e.seq
		if f.ahead != nil && f.ahead.Has(e.id) {
			continue
		}
		i, err := f.own(e.item)
		if err != nil {
			return nil, nil, err
		}
		f.items = append(f.items, i)
		size += i.size()
	}
	return f.items, more, nil
}

// own returns a message with this client's cursor. It is the hub's cursor as soon as the hub has all ids of ahead.
func (f *feed) own(i item) (item, error) {
	if f.ahead == nil {
		return i, nil
	}
	hub, err := position.ParseProgress(i.cursor)
	if err != nil {
		return i, err
	}
	has := f.ahead.Union(&hub)
	if has.Text(math.MaxInt) == hub.Text(math.MaxInt) {
		f.ahead = nil
		return i, nil
	}
	return item{i.json, has.Text(maxRuns), i.seq}, nil
}
