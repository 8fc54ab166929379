package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// redisSource is the member of a consumer group of a Redis stream. A message's id is the entry's. It first receives the entries that the
// group had in hand when it ended.
type redisSource struct {
	client        *redis.Client
	stream, group string
	last          string // the last received entry of those in hand from before; ">" when none is left
	got           []string
}

// redisMember is the name of the group's only consumer, so that each import gets the pending entries of the one before.
const redisMember = "mqnotify"

func originRedis(p *params) *origin {
	options := newRedis(p)
	stream, group := p.text("stream", ""), p.text("group", "mqnotify-"+p.topic)
	if stream == "" || group == "" {
		p.note("stream= and group=: name them")
	}
	key := serverKey("redis", options.Addr, strconv.Itoa(options.DB)) + stream
	return &origin{Key: key, Open: func(ctx context.Context) (messageSource, error) {
		client, err := connectRedis(ctx, options)
		if err != nil {
			return nil, err
		}
		s := &redisSource{client: client, stream: stream, group: group, last: "0"}
		if err := s.makeGroup(ctx); err != nil {
			_ = client.Close()
			return nil, err
		}
		return s, nil
	}}
}

// makeGroup makes the group and the stream if they do not exist.
func (s *redisSource) makeGroup(ctx context.Context) error {
	groups, err := s.client.XInfoGroups(ctx, s.stream).Result()
	var said redis.Error
	if err != nil && !errors.As(err, &said) {
		return redisError("XINFO", err)
	}
	for _, group := range groups { // none if the stream does not exist
		if group.Name == s.group {
			return nil
		}
	}
	if err := s.client.XGroupCreateMkStream(ctx, s.stream, s.group, "0").Err(); err != nil {
		return redisError("XGROUP CREATE", err)
	}
	return nil
}

func (s *redisSource) Receive(ctx context.Context, most int) ([]received, error) {
	defer context.AfterFunc(ctx, func() { _ = s.client.Close() })() // only this ends a wait in the server
	for ctx.Err() == nil {
		streams, err := s.client.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: s.group, Consumer: redisMember, Streams: []string{s.stream, s.last}, Count: int64(most), Block: 5 * time.Second,
		}).Result()
		if errors.Is(err, redis.Nil) {
			continue // no entry within Block
		}
		if err != nil {
			if errors.Is(err, redis.ErrClosed) {
				return nil, notify.ErrClosed
			}
			return nil, redisError("XREADGROUP", err)
		}
		entries := streams[0].Messages
		if len(entries) == 0 { // no pending entry is left
			s.last = ">"
			continue
		}
		if s.last != ">" {
			s.last = entries[len(entries)-1].ID
		}
		all, err := s.received(entries)
		if err == nil && len(all) == 0 {
			err = s.Ack(ctx)
		}
		if err != nil || len(all) > 0 {
			return all, err
		}
	}
	return nil, context.Cause(ctx)
}

// received converts entries to messages. The field payload is the payload, and the other fields are headers. Without a field payload,
// the payload is a JSON object of all fields. Pending entries that were deleted are skipped, and acknowledged with the others.
func (s *redisSource) received(entries []redis.XMessage) ([]received, error) {
	s.got = s.got[:0]
	var all []received
	for _, e := range entries {
		s.got = append(s.got, e.ID)
		if e.Values == nil { // deleted
			continue
		}
		m := producer.Message{}
		if payload, has := e.Values["payload"]; has {
			m.Payload = fmt.Append(nil, payload)
			m.Headers = map[string]string{}
			for name, value := range e.Values {
				if name != "payload" {
					m.Headers[name] = fmt.Sprint(value)
				}
			}
		} else {
			text, err := json.Marshal(e.Values)
			if err != nil {
				return nil, err
			}
			m.Payload = text
		}
		all = append(all, received{e.ID, m})
	}
	return all, nil
}

func (s *redisSource) Ack(ctx context.Context) error {
	if err := s.client.XAck(ctx, s.stream, s.group, s.got...).Err(); err != nil {
		return redisError("XACK", err)
	}
	return nil
}

func (s *redisSource) Close() error {
	if err := s.client.Close(); !errors.Is(err, redis.ErrClosed) {
		return err
	}
	return nil
}
