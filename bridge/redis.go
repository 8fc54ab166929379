package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
)

// redisSink writes entries to a Redis stream. The entry's id is the row's id, so that the server refuses duplicates. It accepts only
// ascending ids, so rows must be sent in strict order.
//
// If the server refuses one entry because it is out of memory and accepts the next one, the first row can never be stored. The bridge
// then ends with an error. This can't happen if InFlight is 1. A transaction (MULTI) would prevent it, but lose more: if the default user
// is off, Redis 7.0 drops transactions when it reads its append-only file.
type redisSink struct {
	client *redis.Client
	key    string
	maxLen int64 // 0 is no limit
	most   int   // bytes of a value; the server ends a connection that sends more
	closed atomic.Bool
}

func parseRedis(p *params) *Destination {
	options := newRedis(p)
	key := p.text("stream", p.topic)
	maxLen := p.number("maxlen", 0, 0)
	return &Destination{Strict: true, InFlight: pageRows, Open: func(ctx context.Context) (Sink, error) {
		client, err := connectRedis(ctx, options)
		if err != nil {
			return nil, err
		}
		return &redisSink{client: client, key: key, maxLen: maxLen, most: largestBulk(ctx, client)}, nil
	}}
}

// largestBulk returns the server's proto-max-bulk-len, or its default if the account may not read it.
func largestBulk(ctx context.Context, client *redis.Client) int {
	const setting = "proto-max-bulk-len"
	if values, err := client.ConfigGet(ctx, setting).Result(); err == nil {
		if n, err := strconv.Atoi(values[setting]); err == nil {
			return n
		}
	}
	return 512 << 20
}

// newRedis reads the parameters of a connection: redis://user:password@host:6379/0.
func newRedis(p *params) *redis.Options {
	options := &redis.Options{
		Addr: p.hostPort("6379"), ClientName: "mqnotify", PoolSize: 2,
		MaxRetries: -1, DialerRetries: 1, // the shell retries, because it knows which messages are unconfirmed
		ContextTimeoutEnabled: true,
		ReadTimeout:           -1, WriteTimeout: -1, // the context limits both
		DisableIdentity: true, // older servers don't have CLIENT SETINFO
	}
	options.TLSConfig = p.tls(p.url.Scheme == "rediss", "write rediss://")
	if p.url.User != nil {
		options.Username = p.url.User.Username()
		options.Password, _ = p.url.User.Password()
	}
	if db := strings.Trim(p.url.Path, "/"); db != "" {
		n, err := strconv.Atoi(db)
		if err != nil || n < 0 {
			p.note("the path must be the database's number, such as /0")
		}
		options.DB = n
	}
	return options
}

func connectRedis(ctx context.Context, options *redis.Options) (*redis.Client, error) {
	own := *options
	client := redis.NewClient(&own)
	defer context.AfterFunc(ctx, func() { _ = client.Close() })() // the client observes only a context's deadline
	if err := client.Ping(ctx).Err(); err != nil {
		_ = client.Close()
		return nil, redisError("connect", err)
	}
	return client, nil
}

// redisError makes a PermanentError of a refusal that no retry can change.
func redisError(verb string, err error) error {
	if redis.IsAuthError(err) || redis.IsPermissionError(err) {
		return permanent(fmt.Errorf("%s: the credentials are refused: %w", verb, err))
	}
	if node, moved := redis.IsMovedError(err); moved {
		return permanent(fmt.Errorf("%s: the server is part of a cluster, and the stream is on another: name %s: %w", verb, node, err))
	}
	return fmt.Errorf("%s: %w", verb, err)
}

func (s *redisSink) Send(ctx context.Context, messages []consumer.Message) (int, error) {
	if s.closed.Load() {
		return 0, notify.ErrClosed
	}
	for i, m := range messages {
		if len(m.Payload) <= s.most {
			continue
		}
		if i == 0 {
			return 0, poison(m, "it has %d bytes, and the server's limit for a value is %d", len(m.Payload), s.most)
		}
		n, err := s.Send(ctx, messages[:i])
		if err == nil {
			_, err = s.Send(ctx, messages[i:i+1])
		}
		return n, err
	}
	// The client observes only a context's deadline.
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	// A goroutine makes the next pipeline while the server handles the last one.
	ctx, cancel := context.WithCancel(ctx)
	pipelines := make(chan pipeline, 1)
	defer func() { // wait for the goroutine below, because Send must not keep messages after it returns
		cancel()
		for range pipelines {
		}
	}()
	go func() {
		defer close(pipelines)
		for page := range slices.Chunk(messages, pipelined) {
			select {
			case pipelines <- s.pipeline(ctx, page):
			case <-ctx.Done():
				return
			}
		}
	}()
	confirmed := 0
	for p := range pipelines {
		n, err := s.run(ctx, p)
		confirmed += n
		if err != nil {
			return confirmed, err
		}
	}
	if confirmed < len(messages) {
		return confirmed, context.Cause(ctx)
	}
	return confirmed, nil
}

// pipelined is how many entries one pipeline has.
const pipelined = 500

// pipeline has commands that are sent together.
type pipeline struct {
	redis.Pipeliner
	messages []consumer.Message
	added    []*redis.StringCmd
}

func (s *redisSink) pipeline(ctx context.Context, messages []consumer.Message) pipeline {
	p := pipeline{s.client.Pipeline(), messages, make([]*redis.StringCmd, len(messages))}
	for i, m := range messages {
		p.added[i] = redis.NewStringCmd(ctx, s.entry(m)...)
		_ = p.Process(ctx, p.added[i]) // a pipeline only stores it
	}
	return p
}

// run sends a pipeline and checks the answers. It returns how many messages the stream has.
func (s *redisSink) run(ctx context.Context, p pipeline) (int, error) {
	_, failed := p.Exec(ctx)
	if failed == nil {
		return len(p.messages), nil
	}
	if s.closed.Load() {
		return 0, notify.ErrClosed
	}
	if !slices.ContainsFunc(p.added, func(c *redis.StringCmd) bool { return c.Err() != nil }) {
		return 0, redisError("connect", failed) // no command was sent: the server refuses the connection
	}
	for i, m := range p.messages {
		err := p.added[i].Err()
		if err == nil {
			continue
		}
		var refusal redis.Error
		if !errors.As(err, &refusal) || redis.IsAuthError(err) || redis.IsPermissionError(err) {
			return i, redisError("XADD", err)
		}
		if err := s.isThere(ctx, m, err); err != nil {
			return i, err
		}
	}
	return len(p.messages), nil
}

// entry returns the arguments of a message's XADD.
func (s *redisSink) entry(m consumer.Message) []any {
	all := fields(m, func(name, _ string) bool { return name != "payload" })
	args := make([]any, 0, 10+2*len(all))
	args = append(args, "XADD", s.key)
	if s.maxLen > 0 {
		args = append(args, "MAXLEN", "~", s.maxLen)
	}
	args = append(args, entryID(m.ID), fieldMessageID, MessageID(m))
	for _, f := range all {
		args = append(args, f.name, f.value)
	}
	return append(args, "payload", m.Payload)
}

func entryID(id uint64) string { return strconv.FormatUint(id, 10) + "-0" }

// isThere returns nil if a refused message is in the stream, or was and has been trimmed. It asks the server, because only the text of
// the refusal tells the reasons apart.
func (s *redisSink) isThere(ctx context.Context, m consumer.Message, refusal error) error {
	id := entryID(m.ID)
	entries, err := s.client.XRange(ctx, s.key, id, id).Result()
	switch {
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return permanent(fmt.Errorf("the key %q exists and is no stream: name another one with stream=: %w", s.key, err))
	case err != nil:
		return redisError("XRANGE", errors.Join(err, refusal))
	case len(entries) == 1 && entries[0].Values[fieldMessageID] == MessageID(m):
		createdAt, _ := entries[0].Values[fieldCreatedAt].(string)
		return checkSame(m, createdAt)
	case len(entries) == 1:
		return permanent(fmt.Errorf("entry %s of the stream %q is not of this topic: use a stream of the topic's own: %w", id, s.key, refusal))
	}
	info, err := s.client.XInfoStream(ctx, s.key).Result()
	if err != nil {
		return redisError("XINFO", errors.Join(err, refusal))
	}
	switch {
	case !later(info.LastGeneratedID, m.ID): // it was refused for another reason
		return redisError("XADD", refusal)
	case s.maxLen > 0 && !m.IsRetry() && info.Length > 0 && later(info.FirstEntry.ID, m.ID) && maybeTrimmed(m, info.FirstEntry, info.LastEntry):
		return nil
	}
	return permanent(fmt.Errorf("the stream %q is past %s and does not have it: other programs write to it, the table was emptied, or rows were "+
		"sent in another order: use a stream of the topic's own: %w", s.key, id, refusal))
}

// maybeTrimmed reports whether the message may have been trimmed: the remaining first and last entry are of its topic, and one of them is
// not older than the message. If both are older, they are of a table that was emptied since.
func maybeTrimmed(m consumer.Message, left ...redis.XMessage) bool {
	recent := false
	for _, entry := range left {
		if name, _ := entry.Values[fieldMessageID].(string); !strings.HasPrefix(name, m.Topic+":") {
			return false
		}
		text, _ := entry.Values[fieldCreatedAt].(string)
		createdAt, err := time.Parse(time.RFC3339Nano, text)
		recent = recent || err != nil || !createdAt.Before(m.CreatedAt)
	}
	return recent
}

// later reports whether an entry's id is at least a row's id.
func later(entry string, id uint64) bool {
	first, _, _ := strings.Cut(entry, "-")
	n, err := strconv.ParseUint(first, 10, 64)
	return err == nil && n >= id
}

func (s *redisSink) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	return s.client.Close()
}
