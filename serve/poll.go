package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/mqnotify/mqnotify/internal/position"
)

// maxPoll limits the messages of an answer, and maxPage about its bytes. An answer may have one larger message.
const (
	maxPoll = 1000
	maxPage = 4 << 20
)

// poll handles GET /topics/{topic}/messages, long polling for clients that can't read streams.
func (s *Server) poll(w http.ResponseWriter, r *http.Request, t *topic) {
	from, err := startOf(r)
	query := r.URL.Query()
	wait, limit := time.Duration(0), maxPoll
	if text := query.Get("wait"); text != "" && err == nil {
		if wait, err = time.ParseDuration(text); err == nil && (wait < 0 || wait > 5*time.Minute) {
			err = errors.New("out of range")
		}
		if err != nil {
			err = errors.New("wait: write a duration such as 30s, at most 5m")
		}
	}
	if text := query.Get("limit"); text != "" && err == nil {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxPoll {
			err = fmt.Errorf("limit: write a number from 1 to %d", maxPoll)
		}
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	if err := t.hub.enter(); err != nil {
		failLater(w, "the topic is not being read now")
		return
	}
	defer t.hub.leave()
	f := &feed{hub: t.hub, poll: true}
	defer f.release()
	items, cursor, err := s.collect(r.Context(), f, from, wait, limit)
	switch {
	case errors.As(err, &cursorError{}):
		fail(w, http.StatusConflict, err.Error())
		return
	case errors.Is(err, errBehind):
	case err != nil:
		s.log.WarnContext(r.Context(), "a poll failed", "topic", t.name, "error", err)
		failLater(w, "the messages can't be read now")
		return
	}
	s.metrics.sent.WithLabelValues(t.name, "poll").Add(float64(len(items)))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = s.page(w, items, cursor) // if it fails, the client polls again with its old cursor
}

// page writes a poll's answer, a piece at a time. It gives up if the client is slow while other requests need the memory.
func (s *Server) page(w http.ResponseWriter, items []item, cursor string) error {
	began := time.Now()
	c := &sse{w: w, control: http.NewResponseController(w), timeout: s.options.WriteTimeout}
	stays := func() bool { return time.Since(began) < c.timeout || !s.options.memory.crowded() }
	c.text().WriteString(`{"messages":[`)
	for i, item := range items {
		if i > 0 {
			c.text().WriteByte(',')
		}
		if c.text().Len()+len(item.json) > copied {
			if err := c.send(); err != nil {
				return err
			}
			if err := c.write(item.json, stays); err != nil {
				return err
			}
			continue
		}
		c.text().Write(item.json)
	}
	_, _ = fmt.Fprintf(c.text(), "],\"next\":%q}\n", cursor) // a bytes.Buffer never fails
	if err := c.send(); err != nil {
		return err
	}
	return c.within(c.timeout) // the end of the body is written after this
}

// errLate ends a join that takes too long.
var errLate = errors.New("it takes too long")

// collect returns the messages after from, and waits up to wait for the first.
func (s *Server) collect(ctx context.Context, f *feed, from *position.Progress, wait time.Duration, limit int) (all []item, cursor string, err error) {
	size := 0
	give := func(items []item) error {
		for _, i := range items {
			if len(all) == limit || len(all) > 0 && size+i.size() > maxPage {
				return errFull
			}
			if i.seq != 0 { // backfill has counted items from the table
				holding, done := context.WithTimeoutCause(ctx, s.options.crowded, errLate)
				err := f.hold(holding, i.size())
				if done(); err != nil {
					return err
				}
			}
			all = append(all, i)
			size += i.size()
		}
		return nil
	}
	defer func() {
		if len(all) > 0 {
			cursor = all[len(all)-1].cursor
		}
	}()
	late := time.NewTimer(wait)
	defer late.Stop()
	joining, cancel := s.untilStop(ctx)
	defer cancel()
	joining, giveUp := context.WithTimeoutCause(joining, wait+2*s.options.patience, errLate) // 2*patience is for the join itself
	defer giveUp()
	cursor, err = f.join(joining, from, give)
	if err != nil && len(all) > 0 {
		return all, "", nil // the cursor is the last message's
	}
	if err != nil {
		return nil, "", err
	}
	for {
		items, more, err := f.next()
		if err != nil {
			return all, cursor, err
		}
		if err := give(items); len(all) > 0 {
			return all, cursor, nil
		} else if err != nil {
			return nil, "", err
		}
		select {
		case <-more:
		case <-late.C:
			return all, cursor, nil
		case <-s.stopping:
			return all, cursor, nil
		case <-ctx.Done():
			return all, cursor, context.Cause(ctx)
		}
	}
}
