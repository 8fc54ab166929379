package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/internal/position"
)

// why a stream ends, as clients and metrics are told.
const (
	endBehind   = "behind"
	endShutdown = "shutdown"
	endCursor   = "cursor"
	endFailed   = "failed"
	endGone     = "gone"
	endSlow     = "slow"
)

// sse writes Server-Sent Events to one client.
type sse struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	buffer  *bytes.Buffer   // the next bytes to send; nil if there are none
	stays   func(item) bool // reports whether a client that reads slowly may go on with a message
}

const (
	// piece is about how much goes to a client at a time: what a slow one reads in
	// Options.WriteTimeout too.
	piece = 64 << 10
	// copied is about how much is copied for one write. Each client that reads slowly holds as much.
	copied = 16 << 10
)

// buffers are those of clients that have nothing to be sent: thousands may wait for the next message.
var buffers = sync.Pool{New: func() any { return bytes.NewBuffer(make([]byte, 0, copied)) }}

// text returns the buffer for the next bytes to send.
func (c *sse) text() *bytes.Buffer {
	if c.buffer == nil {
		c.buffer = buffers.Get().(*bytes.Buffer)
	}
	return c.buffer
}

// send writes what is in the buffer.
func (c *sse) send() error {
	if c.buffer == nil {
		return nil
	}
	err := c.write(c.buffer.Bytes(), nil)
	c.buffer.Reset()
	buffers.Put(c.buffer)
	c.buffer = nil
	return err
}

// write writes a text, in pieces, each with its time, until stays says no.
func (c *sse) write(text []byte, stays func() bool) error {
	for part := range slices.Chunk(text, piece) {
		if err := c.within(c.timeout); err != nil {
			return err
		}
		if _, err := c.w.Write(part); err != nil {
			return err
		}
		if err := c.control.Flush(); err != nil {
			return err
		}
		if stays != nil && !stays() {
			return fmt.Errorf("%w: other clients need the memory", os.ErrDeadlineExceeded)
		}
	}
	return c.within(0) // over HTTP/2 it would end the stream in the silence that follows
}

// within sets the time for writes from now on; 0 means any.
func (c *sse) within(d time.Duration) error {
	var end time.Time
	if d > 0 {
		end = time.Now().Add(d)
	}
	if err := c.control.SetWriteDeadline(end); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// items writes messages, until the context ends.
func (c *sse) items(ctx context.Context, items []item) error {
	for _, i := range items {
		if c.buffer != nil && c.buffer.Len()+i.size() > copied {
			if err := c.send(); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if !c.stays(i) {
				return errBehind
			}
		}
		_, _ = fmt.Fprintf(c.text(), "id: %s\ndata: ", i.cursor) // a Buffer takes all
		if len(i.json) > copied {                                // which is all clients': no copy for each
			if err := c.send(); err != nil {
				return err
			}
			if err := c.write(i.json, func() bool { return c.stays(i) }); err != nil {
				return err
			}
		} else {
			c.text().Write(i.json)
		}
		c.text().WriteString("\n\n")
	}
	return c.send()
}

// end tells the client why, and when to come back.
func (c *sse) end(reason, text string, retry time.Duration) {
	fmt.Fprintf(c.text(), "retry: %d\nevent: end\ndata: {\"reason\":%q,\"text\":%q}\n\n", retry.Milliseconds(), reason, text)
	_ = c.send() // it is the last that can be done for it
}

// stream is GET /topics/{topic}/events.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, t *topic) {
	from, err := startOf(r)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	if err := t.hub.open(); err != nil {
		w.Header().Set("Retry-After", "2")
		fail(w, http.StatusServiceUnavailable, "the topic is not being read now")
		return
	}
	t.hub.enter()
	defer t.hub.leave()
	c := &sse{w: w, control: http.NewResponseController(w), timeout: s.options.WriteTimeout}
	reason := s.follow(r.Context(), t, c, from)
	_ = c.within(c.timeout) // for the body's end, which is written after this
	s.metrics.ended.WithLabelValues(t.name, reason).Inc()
	s.log.DebugContext(r.Context(), "a stream ended", "topic", t.name, "reason", reason, "client", r.RemoteAddr)
}

// follow gives the client its events until it is to end, and returns why.
func (s *Server) follow(ctx context.Context, t *topic, c *sse, from *position.Progress) (reason string) {
	ctx, cancel := s.untilStop(ctx)
	defer cancel()
	sent := s.metrics.sent.WithLabelValues(t.name, "stream")
	started := false
	start := func() {
		if !started {
			started = true
			c.w.Header().Set("Content-Type", "text/event-stream")
			c.w.Header().Set("X-Accel-Buffering", "no") // nginx would hold events back
			c.w.WriteHeader(http.StatusOK)
		}
	}
	var given time.Time // when the client was given what it has in hand
	c.stays = func(i item) bool {
		if i.seq != 0 {
			return t.hub.keeps(i.seq)
		}
		return time.Since(given) < c.timeout || !s.options.memory.crowded()
	}
	give := func(items []item) error {
		start()
		given = time.Now()
		sent.Add(float64(len(items)))
		return c.items(ctx, items)
	}
	heartbeat := time.NewTicker(s.options.Heartbeat)
	defer heartbeat.Stop()
	beat := func() error {
		start()
		c.text().WriteString(":\n\n")
		return c.send()
	}
	f := feed{hub: t.hub, often: heartbeat.C, beat: beat}
	err := f.begun(ctx)
	var cursor string
	if err == nil {
		cursor, err = f.join(ctx, from, give)
	}
	if err != nil && !started && errors.As(err, &cursorError{}) {
		fail(c.w, http.StatusConflict, err.Error())
		return endCursor
	}
	start()
	if err == nil {
		// An id without data makes no event, but a client that is cut off before its first
		// event knows where it was.
		fmt.Fprintf(c.text(), "retry: %d\nid: %s\n\n", s.options.ReconnectAfter.Milliseconds(), cursor)
		err = c.send()
	}
	for err == nil {
		var items []item
		var more <-chan struct{}
		if items, more, err = f.next(); err != nil {
			break
		}
		if len(items) > 0 {
			if err = give(items); err == nil {
				err = context.Cause(ctx) // there may always be more
			}
			heartbeat.Reset(s.options.Heartbeat)
			continue
		}
		select {
		case <-more:
		case <-heartbeat.C:
			err = beat()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	switch {
	case errors.Is(err, errStopping):
		c.end(endShutdown, "the server ends: come back", s.options.ReconnectAfter)
		return endShutdown
	case errors.Is(err, errBehind):
		c.end(endBehind, "you read more slowly than messages come: come back, nothing is lost", s.options.ReconnectAfter)
		return endBehind
	case errors.Is(err, os.ErrDeadlineExceeded):
		return endSlow
	case ctx.Err() != nil:
		return endGone
	}
	s.log.WarnContext(ctx, "a stream failed", "topic", t.name, "error", err)
	c.end(endFailed, "what was before can't be read now: come back", s.options.ReconnectAfter)
	return endFailed
}

// errStopping ends streams and long polls when the server ends.
var errStopping = errors.New("the server ends")

// untilStop is a context that ends with the server, too: a join may take long.
func (s *Server) untilStop(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-s.stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// maxCursor is more than a cursor of ours takes: maxRuns runs of two numbers each.
const maxCursor = 16 << 10

// startOf is where a client wants to begin; nil means now. A browser's Last-Event-ID,
// which it sends when it comes back, goes before what the address says.
func startOf(r *http.Request) (*position.Progress, error) {
	text := r.Header.Get("Last-Event-ID")
	if text == "" {
		text = r.URL.Query().Get("after")
	}
	if text == "" {
		return nil, nil //nolint:nilnil // no progress is one
	}
	if len(text) > maxCursor {
		return nil, fmt.Errorf("the cursor is too long (after, Last-Event-ID): one has at most %d bytes", maxCursor)
	}
	if text == "beginning" {
		return &position.Progress{}, nil
	}
	p, err := position.ParseProgress(text)
	if err != nil {
		return nil, fmt.Errorf("the cursor is wrong (after, Last-Event-ID): write an id, an event's id, or beginning")
	}
	return &p, nil
}
