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
	json   []byte // shared with other clients, but for one that was read for this client alone
	cursor string // of who has it and all before it
	seq    uint64 // its place in the hub's order; 0 for one that was read from the table
}

// size is about how much memory it takes, and how many bytes its event has.
func (i item) size() int { return len(i.json) + 2*len(i.cursor) + len("id: \ndata: \n\n") }

// feed is what one client gets, each message once: first what it lacks, then what
// comes.
//
// A cursor is a position.Progress: a watermark below which the client has everything
// that there will ever be, and the ids above it that the client has. A row that commits
// late, below ids that the client has, is in no such cursor, and so comes, after a
// resume too.
//
// To join, the client is given what it lacks of all that the hub has handed out at some
// moment, and then the hub's events from that moment on. What is not handed out at that
// moment is an event later. What it lacks is among the events that the hub keeps, or is
// read from the table, for that client alone.
type feed struct {
	hub *hub
	seq uint64 // of the last event that it has had
	// ahead, if not nil, is what the client came with, of which the hub may not have had all
	// yet: another server's hub was quicker.
	ahead *position.Progress
	items []item // of the last next
	// beat is called whenever often says so, while the hub has not begun and while other clients
	// read the table, unless this one may yet be refused. A nil often never does.
	often <-chan time.Time
	beat  func() error

	held int64 // of Options.MaxMemory
	poll bool  // it keeps what it was given until release
}

// cursorError is a cursor that can't be resumed from.
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

// join gives the client what it lacks; give returns an error to end it. A nil progress
// means from now on. cursor is what the client has when join returns.
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
		has = has.Union(&at.progress) // the client may have what the hub has not
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
		// It took so long that the hub no longer keeps the messages that came meanwhile.
		if at, err = f.hub.now(ctx); err != nil {
			return "", err
		}
	}
}

// missed gives the client events that the hub kept, a piece at a time: one that reads them so
// slowly that it falls behind again is ended, as any other.
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

// caughtUp waits until the hub knows the id, or the table counts past it: its newest rows
// may be deleted, and another server's hub may have been quicker.
func (f *feed) caughtUp(ctx context.Context, id uint64) (snapshot, error) {
	at, err := f.hub.now(ctx)
	if err != nil || id <= at.progress.Largest() {
		return at, err
	}
	// Without a heartbeat: it may yet be refused.
	err = f.read(ctx, nil, id, func([]consumer.Message) error { return consumer.ErrStop }, func() error { return nil })
	if !errors.Is(err, consumer.ErrBelowOffset) {
		return at, err
	}
	// Or this hub reads a replica, which is behind.
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
			return at, cursorError{fmt.Errorf("the cursor is at %d and the topic's ids end at %d: was the table emptied? Begin anew, without a cursor",
				id, at.progress.Largest())}
		case <-ctx.Done():
			return at, context.Cause(ctx)
		}
	}
}

// advance notes that the client has all up to id of what the hub has.
func advance(has, hub *position.Progress, id uint64) {
	has.Settle(min(id, hub.Settled))
	has.Add(id)
}

// errFull ends what a poll is given.
var errFull = errors.New("enough")

// hold waits until there is memory for the items of this client, which release gives back. A poll that has
// some already does not wait, because others may wait for what it has.
func (f *feed) hold(ctx context.Context, size int) error {
	memory := f.hub.options.memory
	n := memory.bounded(int64(size))
	if f.held > 0 && !memory.TryAcquire(n) {
		return errFull
	}
	if f.held == 0 {
		if err := memory.acquire(ctx, n, f.often, f.beat); err != nil {
			return err
		}
	}
	f.held += n
	return nil
}

func (f *feed) release() {
	f.hub.options.memory.Release(f.held)
	f.held = 0
}

// portion is about how much is read from the table for a client at a time. It is given to the
// client when others may read again, and so is in memory for each that is slow: hold counts it.
const portion = 4 * piece

// backfill reads from the table what the hub has and the client lacks.
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
	// All that the hub had is here now; what it has had since is the next round's.
	*has = has.Union(hub)
	return nil
}

const (
	// reading is how many bytes all reads of tables for clients may take at the same time, before hold counts what they have found.
	reading = 32 << 20
	// oneRead is what a read takes: a page. Where a message is larger than a fourth of it, the read takes four times the message: in
	// the buffer of its connection, in its page, in the page that is read meanwhile, and as JSON.
	oneRead = 4 << 20
)

// permit waits until this client may read the table: all may come back at once. A poll that holds memory does not wait, because
// others may wait for what it holds.
func (f *feed) permit(ctx context.Context, often <-chan time.Time) (leave func(), err error) {
	permits := f.hub.options.reading
	n := permits.bounded(max(oneRead, 4*f.hub.largest.Load()))
	if f.held > 0 && !permits.TryAcquire(n) {
		return nil, errFull
	}
	if f.held == 0 {
		if err := permits.acquire(ctx, n, often, f.beat); err != nil {
			return nil, err
		}
	}
	return func() { permits.Release(n) }, nil
}

// read gives the rows above an id, a page at a time, until take says consumer.ErrStop. It calls last before another
// client may read in its place, so that what clients have read and did not count yet is bounded.
func (f *feed) read(ctx context.Context, often <-chan time.Time, after uint64, take func([]consumer.Message) error, last func() error) error {
	leave, err := f.permit(ctx, often)
	if err != nil {
		return err
	}
	defer leave()
	c, err := consumer.New(f.hub.db, f.hub.topic, consumer.Options{
		From:      strconv.FormatUint(max(after, after+1), 10), // the largest number has none after it
		StopAtEnd: true, Key: f.hub.options.Keys[f.hub.topic], Logger: f.hub.options.Logger, MaxAttempts: 1,
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

// next returns a piece of the messages that follow, which are valid until the next call. It also
// returns a channel that is closed when there are more than all of these.
func (f *feed) next() (items []item, more <-chan struct{}, err error) {
	events, more, err := f.hub.since(f.seq)
	if err != nil {
		return nil, nil, err
	}
	clear(f.items) // or they would stay in memory
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

// own is a message with this client's cursor, which is the hub's as soon as that has all
// that the client came with.
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
