package waiting

import (
	"context"
	"strings"

	"github.com/mqnotify/mqnotify/internal/server"
)

// heads reads the committed heads of topics, and returns the topics whose head is new. If the helper's
// connection fails it returns none. It then marks no topic as unchanged, so the next round reads again.
func (p *poller) heads(ctx context.Context, topics []*topic) (news []*topic) {
	if len(topics) == 0 {
		return nil
	}
	var heads []Head
	var failed map[*topic]error
	err := p.process.helper.with(ctx, func(s *session) (err error) {
		heads, failed, err = p.ask(ctx, s, topics)
		return err
	})
	if err != nil {
		p.process.log.DebugContext(ctx, "heads could not be read; trying again", "error", err)
		p.unknown(ctx, topics, err)
		return nil
	}
	for i, t := range topics {
		if failed[t] != nil {
			p.fails(ctx, t, failed[t])
			continue
		}
		t.failing = false
		t.noWait = false
		if carrier := t.carrier(); carrier != nil && heads[i] != t.seen() {
			carrier.Outdate() // before a listener can see the new head
		}
		if t.set(heads[i], nil) {
			news = append(news, t)
		}
	}
	return news
}

// unknown gives the error to the listeners that wait for a topic's first head.
func (p *poller) unknown(ctx context.Context, topics []*topic, err error) {
	for _, t := range topics {
		if ctx.Err() == nil && !t.now().known {
			t.set(Head{}, err)
		}
	}
}

// fails records that the query of a topic has failed. The topic leaves the rounds until the query succeeds.
func (p *poller) fails(ctx context.Context, t *topic, err error) {
	if server.Retryable(err) {
		p.setAside(ctx, t)
		return
	}
	t.failing = true
	t.set(Head{}, err)
}

// ask reads the heads of topics together, or one by one if the common statement fails.
func (p *poller) ask(ctx context.Context, s *session, topics []*topic) (heads []Head, failed map[*topic]error, err error) {
	heads = make([]Head, len(topics))
	for begin := 0; begin < len(topics); begin += together {
		some := topics[begin:min(begin+together, len(topics))]
		err := ask(s, some, heads[begin:])
		if err == nil {
			continue
		}
		if ctx.Err() != nil || server.ConnectionLost(err) {
			return nil, nil, err
		}
		if failed == nil {
			failed = make(map[*topic]error)
		}
		for i, t := range some {
			if len(some) > 1 {
				err = ask(s, some[i:i+1], heads[begin+i:])
			}
			if server.ConnectionLost(err) {
				return nil, nil, err
			}
			if err != nil {
				failed[t] = err
			}
		}
	}
	return heads, failed, nil
}

func ask(s *session, topics []*topic, heads []Head) error {
	queries := make([]string, len(topics))
	var args []any
	into := make([]any, len(topics))
	for i, t := range topics {
		queries[i] = "(" + t.Topic.Head + ")"
		args = append(args, t.Args...)
		into[i] = &heads[i].Null
	}
	return s.ask(answer, "SELECT "+strings.Join(queries, ", "), args, into...)
}

// setAside reads the head of a topic whose table is locked over a connection of its own, until that succeeds, so that the topic does
// not delay the others.
func (p *poller) setAside(ctx context.Context, t *topic) {
	if t.aside {
		return
	}
	t.aside = true
	back, process := p.back, p.process
	p.asides.Go(func() {
		for ctx.Err() == nil {
			s, err := connect(ctx, process.config, readCommitted, "lock_wait_timeout", "5")
			if err == nil {
				stop := process.endWith(ctx, s, opened)
				err = ask(s, []*topic{t}, make([]Head, 1))
				stop()
				s.close()
			}
			if err == nil || !server.Retryable(err) && !server.ConnectionLost(err) {
				break
			}
			_ = server.Pause(ctx, mostPoll)
		}
		select {
		case back <- t:
		case <-ctx.Done():
		}
	})
}
