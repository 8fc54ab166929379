package bridge

import (
	"context"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
)

// Progress is how far a bridge is, for people.
type Progress struct {
	// Sent and Dead count the messages of this run: confirmed ones, and those that
	// went to the dead letters.
	Sent, Dead int
	// ID is the last message's, From and Head are where the run began to send and the
	// topic's largest id then: the backlog is what is between. Ids have gaps, so its rows
	// are fewer than Head - From.
	ID, From, Head uint64
	// Elapsed is how long the run has sent, Left how long the rest of the backlog will
	// take at the rate so far; 0 when there is none.
	Elapsed, Left time.Duration
}

// meter counts.
type meter struct {
	sent, dead int
	from, head uint64
	known      bool // from
	began      time.Time
}

// begin notes where the group is and how far there is to go, at the first page: until then another
// member may have been sending, for hours.
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
	if err != nil { // the rows are sent without it
		s.options.Logger.WarnContext(ctx, "how large the backlog is can't be told", "topic", s.topic, "error", err)
		return
	}
	s.head = status.Head
	if len(status.Groups) > 0 && !s.options.Consumer.Reset {
		s.from, s.known = status.Groups[0].Settled, true
	}
}

// report tells of a page from the first id to id.
func (s *shell) report(first, id uint64) {
	if s.options.Report == nil {
		return
	}
	if !s.known { // a new group: where Consumer.From is shows only now
		s.from, s.known = first-1, true
	}
	p := Progress{Sent: s.sent, Dead: s.dead, ID: id, From: s.from, Head: s.head, Elapsed: time.Since(s.began)}
	if id > s.from && id < s.head {
		p.Left = time.Duration(float64(p.Elapsed) * float64(s.head-id) / float64(id-s.from))
	}
	s.options.Report(p)
}
