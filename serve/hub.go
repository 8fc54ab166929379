package serve

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

const (
	// maxRuns limits the ranges of ids in a cursor, to about 2 KB. After a resume the client gets the messages of left-out ranges twice.
	// A topic with few gaps has few ranges.
	maxRuns = 128
	// warm is how many of the last rows a hub reads when it begins, so that clients that reconnect after a restart need no read of the
	// table.
	warm = 1000
)

// event is a message in the hub.
type event struct {
	item
	id uint64
}

// hub has a topic's one reader, and the newest events for any number of clients. Each client has a position among the events. A client
// that falls behind the oldest event is disconnected, and delays no other client.
type hub struct {
	db      *notify.DB
	topic   string
	options Options
	log     *slog.Logger
	metrics *topicMetrics

	largest atomic.Int64 // the size in bytes of the largest message that was read since the start

	mu       sync.Mutex
	begun    chan struct{} // closed when the reader has reached head for the first time
	head     uint64        // the topic's head when the reader began
	fresh    bool          // a new reader has not reported its position yet
	progress position.Progress
	events   []event // the newest, in the order of delivery
	bytes    int
	dropped  int           // bytes of dropped events that the array of events still holds
	floor    uint64        // events has all delivered rows above this id
	seq      uint64        // the newest event's number
	changed  chan struct{} // closed when there are new events
	woken    time.Time     // when changed was closed last
	due      bool          // a timer will close changed
	clients  int
	err      error // why the reader has ended
	lost     bool  // the reader has no connection, and reconnects
	rate     rate
}

func newHub(db *notify.DB, topic string, options Options, metrics *topicMetrics) *hub {
	return &hub{
		db: db, topic: topic, options: options, log: options.Logger.With("topic", topic), metrics: metrics,
		begun: make(chan struct{}), changed: make(chan struct{}),
	}
}

// run reads until ctx ends. It tries again even after errors that end a consumer, because a dropped table may be made again.
func (h *hub) run(ctx context.Context) {
	waits := notify.Exponential(time.Second, 30*time.Second)
	for {
		begun := time.Now()
		err := h.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("the reader ended")
		}
		h.mu.Lock()
		if server.ConnectionLost(err) || server.Number(err) != 0 && !server.Permanent(err) {
			h.lost = true // until watch is called; clients wait
		} else {
			h.err = err
		}
		h.mu.Unlock()
		if time.Since(begun) > time.Minute {
			waits.Reset()
		}
		wait := waits.NextBackOff()
		h.log.ErrorContext(ctx, "the topic can't be read: trying again", "error", err, "wait", wait)
		if server.Pause(ctx, wait) != nil {
			return
		}
	}
}

// lostWaits are a reader's waits between attempts to reconnect.
type lostWaits struct {
	backoff.BackOff
	hub *hub
}

func (w lostWaits) NextBackOff() time.Duration {
	w.hub.metrics.reconnects.Inc()
	w.hub.mu.Lock()
	w.hub.lost = true // until watch is called
	w.hub.mu.Unlock()
	return w.BackOff.NextBackOff()
}

func (h *hub) read(ctx context.Context) error {
	all, err := consumer.New(h.db, h.topic, consumer.Options{})
	if err != nil {
		return err
	}
	status, err := all.Status(ctx)
	if err != nil && !errors.Is(err, notify.ErrNoState) {
		return err
	}
	h.mu.Lock()
	h.fresh, h.head = true, status.Head
	h.mu.Unlock()
	c, err := consumer.New(h.db, h.topic, consumer.Options{
		From: fmt.Sprintf("last %d", warm), Watch: h.watch, Woken: h.metrics.Woken, Mode: h.options.Mode,
		Grace: h.options.Grace, Logger: h.options.Logger, // the consumer adds the topic to its log lines
		Reconnect: func() backoff.BackOff {
			return lostWaits{notify.Exponential(50*time.Millisecond, 5*time.Second), h}
		},
	})
	if err != nil {
		return err
	}
	return c.Run(ctx, consumer.Batch(func(_ context.Context, messages []consumer.Message) error {
		return h.add(messages)
	}))
}

// watch implements consumer.Options.Watch: the reader's position, first where it begins, then what is settled.
func (h *hub) watch(at string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.fresh {
		at, _, _ = strings.Cut(at, "+") // add has the ids above the watermark
	}
	from, err := position.Parse(at)
	if err != nil { // a consumer never reports an invalid position
		h.log.Error("the reader's position can't be read", "error", err)
		return
	}
	p := from.Progress
	h.err, h.lost = nil, false
	if h.fresh {
		// It is unknown which rows lie between two readers. The gap in seq makes every client of the previous reader behind, so that
		// it reconnects with its cursor.
		h.fresh, h.progress, h.events, h.bytes, h.floor = false, p, nil, 0, p.Largest()
		h.seq += uint64(h.options.Buffer) + 1
		h.wake()
	}
	h.progress.Settle(p.Settled)
	h.begin()
}

// begin closes begun when the reader has reached head.
func (h *hub) begin() {
	select {
	case <-h.begun:
	default:
		if h.progress.Largest() >= h.head {
			close(h.begun)
		}
	}
}

// perClient times the number of clients is the minimum time between two wakes. It is about the time of a write to a client. With many
// clients, messages that arrive close together go into one write; a message that arrives alone is sent at once.
const perClient = 20 * time.Microsecond

// wake wakes the clients, now or when the minimum time since the last wake has passed.
func (h *hub) wake() {
	wait := time.Until(h.woken.Add(min(time.Duration(h.clients)*perClient, 100*time.Millisecond)))
	switch {
	case h.due:
	case wait <= 0:
		h.wakeNow()
	default:
		h.due = true
		time.AfterFunc(wait, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.wakeNow()
		})
	}
}

func (h *hub) wakeNow() {
	h.due, h.woken = false, time.Now()
	close(h.changed)
	h.changed = make(chan struct{})
}

// add appends messages to the events and wakes the clients.
func (h *hub) add(messages []consumer.Message) error {
	lines := make([][]byte, len(messages))
	for i, m := range messages {
		line, err := m.MarshalJSON()
		if err != nil {
			return err
		}
		if m.IsRow || cap(line) > len(line)+len(line)/4 { // a row is a part of its page's memory, and kept events are counted by their length
			line = bytes.Clone(line)
		}
		lines[i] = line
		h.saw(len(line))
	}
	now := time.Now()
	h.metrics.Delivered(messages, now)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rate.add(now, len(messages))
	for i, m := range messages {
		h.seq++
		h.progress.Add(m.ID)
		e := event{item{lines[i], h.progress.Text(maxRuns), h.seq}, m.ID}
		h.events = append(h.events, e)
		h.bytes += e.size()
	}
	drop := 0
	for ; drop < len(h.events)-1 && (len(h.events)-drop > h.options.Buffer || h.bytes > h.options.BufferBytes); drop++ {
		h.bytes -= h.events[drop].size()
		h.dropped += h.events[drop].size()
		h.floor = max(h.floor, h.events[drop].id)
	}
	h.events = h.events[drop:]
	if h.dropped > h.options.BufferBytes/8 {
		// Copy the events to a new array instead of clearing the dropped ones, because clients may still read those.
		h.events, h.dropped = slices.Clone(h.events), 0
	}
	h.begin()
	h.wake()
	return nil
}

// saw updates largest with the size of a message.
func (h *hub) saw(size int) {
	for {
		largest := h.largest.Load()
		if int64(size) <= largest || h.largest.CompareAndSwap(largest, int64(size)) {
			return
		}
	}
}

// errBehind ends a client whose next event the hub does not keep any more.
var errBehind = errors.New("behind: it read more slowly than messages came")

// since returns the events after seq, and a channel that is closed when there are further ones.
func (h *hub) since(seq uint64) (events []event, more <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if behind := h.seq - seq; behind > 0 {
		if behind > uint64(len(h.events)) {
			return nil, nil, errBehind
		}
		events = h.events[len(h.events)-int(behind) : len(h.events) : len(h.events)] // its capacity is limited, so that no append overwrites the hub's
	}
	return events, h.changed, nil
}

// keeps reports whether the hub still has the event.
func (h *hub) keeps(seq uint64) bool {
	_, _, err := h.since(seq - 1)
	return err == nil
}

// snapshot is a hub's state at one moment.
type snapshot struct {
	seq      uint64
	progress position.Progress
	cursor   string
}

// now waits until the hub has begun, and returns its snapshot.
func (h *hub) now(ctx context.Context) (snapshot, error) {
	select {
	case <-h.begun:
	case <-ctx.Done():
		return snapshot{}, context.Cause(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return snapshot{h.seq, h.progress.Clone(), h.progress.Text(maxRuns)}, nil
}

// kept returns the events that a client with this progress lacks, in the order of their ids, and the snapshot at that moment. It returns
// false if the hub does not keep all of them.
func (h *hub) kept(p *position.Progress) (events []event, at snapshot, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at = snapshot{h.seq, h.progress.Clone(), h.progress.Text(maxRuns)}
	if p.Settled < h.floor {
		return nil, at, false
	}
	for _, e := range h.events {
		if !p.Has(e.id) {
			events = append(events, e)
		}
	}
	slices.SortFunc(events, func(a, b event) int { return cmp.Compare(a.id, b.id) })
	return events, at, true
}

// state returns the number of clients, the messages per second, and an error if the topic is not being read.
func (h *hub) state() (clients int, perSecond float64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err = h.closed(); err == nil && h.lost {
		err = fmt.Errorf("%s: the database does not answer", h.topic)
	}
	return h.clients, h.rate.per(time.Now()), err
}

func (h *hub) closed() error {
	select {
	case <-h.begun:
		return h.err
	default:
		return cmp.Or(h.err, fmt.Errorf("%s is not being read yet", h.topic))
	}
}

// enter counts a client until the caller calls leave, or returns an error if the client must be refused. The server accepts clients
// before the reader has begun and while it reconnects, and makes them wait, because a browser's EventSource does not reconnect after a
// refusal.
func (h *hub) enter() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.clients++
	}
	return h.err
}

func (h *hub) leave() {
	h.mu.Lock()
	h.clients--
	h.mu.Unlock()
}

// rate counts events over the last seconds.
type rate struct {
	counts [rateSeconds]int
	second int64 // of the last count
}

const rateSeconds = 10

func (r *rate) add(now time.Time, n int) {
	r.move(now)
	r.counts[r.second%rateSeconds] += n
}

func (r *rate) move(now time.Time) {
	second := now.Unix()
	for r.second = max(r.second, second-rateSeconds); r.second < second; {
		r.second++
		r.counts[r.second%rateSeconds] = 0
	}
}

func (r *rate) per(now time.Time) float64 {
	r.move(now)
	sum := 0
	for _, n := range r.counts {
		sum += n
	}
	return float64(sum) / rateSeconds
}
