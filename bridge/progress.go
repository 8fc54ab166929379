package bridge

import (
	"context"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
)

// Progress is the progress of a Run.
type Progress struct {
	// Sent is the number of messages that the destination has confirmed in this run, Dead of those that went to the dead letters.
	Sent, Dead int
	// ID is the last message's id. From is the id after which the run began, and Head the topic's largest id at that time: the backlog
	// is between them. It has fewer rows than Head - From if ids are missing.
	ID, From, Head uint64
	// Elapsed is the time since the run's first page. Left is an estimate of the time for the rest of the backlog; 0 if there is none.
	Elapsed, Left time.Duration
}

// meter counts the messages of a run.
type meter struct {
	sent, dead int
	from, head uint64
	known      bool // from is known
	began      time.Time
}

// begin reads the group's offset and the topic's head at the first page. Until then another member may have been sending for hours.
func (s *shell) begin(ctx context.Context) {
	if s.options.Report == nil || !s.began.IsZero() {
		return
	}
	s.began = time.Now()
	var status *consumer.Status
	c, err := consumer.New(s.db, s.topic, consumer.Options{Group: s.options.Consumer.Group, Key: s.options.Consumer.Key})
	if err == nil {
		status, err = c.Status(ctx)
	}
	if err != nil { // send without it
		s.options.Logger.WarnContext(ctx, "the size of the backlog is unknown", "topic", s.topic, "error", err)
		return
	}
	s.head = status.Head
	if len(status.Groups) > 0 && !s.options.Consumer.Reset {
		s.from, s.known = status.Groups[0].Settled, true
	}
}

// report calls Options.Report after the page with the ids from first to id.
func (s *shell) report(first, id uint64) {
	if s.options.Report == nil {
		return
	}
	if !s.known { // a new group begins at Consumer.From, which is known only now
		s.from, s.known = first-1, true
	}
	p := Progress{Sent: s.sent, Dead: s.dead, ID: id, From: s.from, Head: s.head, Elapsed: time.Since(s.began)}
	if id > s.from && id < s.head {
		p.Left = time.Duration(float64(p.Elapsed) * float64(s.head-id) / float64(id-s.from))
	}
	s.options.Report(p)
}
