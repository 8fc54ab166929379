package serve

import (
	"bytes"
	"cmp"
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

// The reasons why a stream ends, for clients and metrics.
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
	stays   func(item) bool // reports whether a slow client may go on with a message
}

const (
	// piece is about how many bytes are written to a client at a time. A slow client must read them within Options.WriteTimeout.
	piece = 64 << 10
	// copied is about how many bytes are copied into a buffer for one write. Each slow client holds one buffer.
	copied = 16 << 10
)

// buffers has the unused buffers, because thousands of idle clients need none.
var buffers = sync.Pool{New: func() any { return bytes.NewBuffer(make([]byte, 0, copied)) }}

// text returns the buffer for the next bytes to send.
func (c *sse) text() *bytes.Buffer {
	if c.buffer == nil {
		c.buffer = buffers.Get().(*bytes.Buffer)
	}
	return c.buffer
}

// send writes the buffer.
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

// write writes a text in pieces, each within timeout, until stays returns false.
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
	return c.within(0) // over HTTP/2 the deadline would end an idle stream
}

// within sets the deadline of writes to d from now; 0 means none.
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

// items writes messages until ctx ends.
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
		_, _ = fmt.Fprintf(c.text(), "id: %s\ndata: ", i.cursor) // a bytes.Buffer never fails
		if len(i.json) > copied {                                // all clients share json: write it without a copy
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

// end sends the client the reason for the end, and the time to reconnect.
func (c *sse) end(reason, text string, retry time.Duration) {
	fmt.Fprintf(c.text(), "retry: %d\nevent: end\ndata: {\"reason\":%q,\"text\":%q}\n\n", retry.Milliseconds(), reason, text)
	_ = c.send() // the stream ends anyway
}

// stream handles GET /topics/{topic}/events.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, t *topic) {
	from, err := startOf(r)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	if err := t.hub.enter(); err != nil {
		failLater(w, "the topic is not being read now")
		return
	}
	defer t.hub.leave()
	c := &sse{w: w, control: http.NewResponseController(w), timeout: s.options.WriteTimeout}
	reason := s.follow(r.Context(), t, c, from)
	_ = c.within(c.timeout) // the end of the body is written after this
	s.metrics.ended.WithLabelValues(t.name, reason).Inc()
	s.log.DebugContext(r.Context(), "a stream ended", "topic", t.name, "reason", reason, "client", r.RemoteAddr)
}

// follow sends the client its events until the stream ends, and returns the reason.
func (s *Server) follow(ctx context.Context, t *topic, c *sse, from *position.Progress) (reason string) {
	ctx, cancel := s.untilStop(ctx)
	defer cancel()
	sent := s.metrics.sent.WithLabelValues(t.name, "stream")
	started := false
	start := func() {
		if !started {
			started = true
			c.w.Header().Set("Content-Type", "text/event-stream")
			c.w.Header().Set("X-Accel-Buffering", "no") // otherwise nginx buffers events
			c.w.WriteHeader(http.StatusOK)
		}
	}
	var given time.Time // when the writing of the current items began
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
		// An id without data is no event, but a client that is disconnected before its first event can then resume.
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
				err = context.Cause(ctx) // checked here too, because the messages may never pause
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
		c.end(endShutdown, "the server stops: reconnect", s.options.ReconnectAfter)
		return endShutdown
	case errors.Is(err, errBehind):
		c.end(endBehind, "the client reads more slowly than messages arrive: reconnect, nothing is lost", s.options.ReconnectAfter)
		return endBehind
	case errors.Is(err, os.ErrDeadlineExceeded):
		return endSlow
	case ctx.Err() != nil:
		return endGone
	}
	s.log.WarnContext(ctx, "a stream failed", "topic", t.name, "error", err)
	c.end(endFailed, "earlier messages can't be read now: reconnect", s.options.ReconnectAfter)
	return endFailed
}

// errStopping ends streams and long polls when the server stops.
var errStopping = errors.New("the server stops")

// untilStop returns a context that also ends when the server stops, because a join may take long.
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

// maxCursor limits a cursor, in bytes. The server's own, with maxRuns ranges of two numbers, are shorter.
const maxCursor = 16 << 10

// startOf returns where a client wants to begin; nil means now. Last-Event-ID, which a browser sends when it reconnects, has precedence over
// the URL.
func startOf(r *http.Request) (*position.Progress, error) {
	text := cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after"))
	if text == "" {
		return nil, nil //nolint:nilnil // nil is a valid result
	}
	if len(text) > maxCursor {
		return nil, fmt.Errorf("the cursor is too long (after, Last-Event-ID): at most %d bytes", maxCursor)
	}
	if text == "beginning" {
		return &position.Progress{}, nil
	}
	p, err := position.ParseProgress(text)
	if err != nil {
		return nil, fmt.Errorf("the cursor is invalid (after, Last-Event-ID): send an id, an event's id, or beginning")
	}
	return &p, nil
}
