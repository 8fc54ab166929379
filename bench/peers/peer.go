package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// peer is a way to have rows handled soon after they were committed.
type peer struct {
	name string
	ours bool
	// each is the longest time between two polls, else 0.
	each time.Duration
	// keeps is true if messages are kept for consumers that connect later.
	keeps bool
	// questions is the server's own count of statements so far.
	questions func(ctx context.Context) (float64, error)
	open      func(ctx context.Context) (topic, error)
}

// topic is a peer's table with its publisher and consumers. It is safe for concurrent use.
type topic interface {
	// Publish returns when the messages are committed.
	Publish(ctx context.Context, payloads ...[]byte) error
	// Begin publishes in a transaction, which the caller commits later.
	Begin(ctx context.Context, payload []byte) (commit func() error, err error)
	// Consume has a handler called for each message, until the context ends, over
	// connections of its own. What a group has handled is not handled again.
	Consume(ctx context.Context, group string, handler func(payload []byte)) error
	// Close ends what Publish needed.
	Close() error
}

// body is a message's, JSON because one of the peers takes nothing else.
type body struct {
	N    int    `json:"n"`
	Text string `json:"text"`
}

func payload(n int) []byte {
	return fmt.Appendf(nil, `{"n": %d, "text": "a short row, as in a topic"}`, n)
}

func number(payload []byte) (int, error) {
	var b body
	err := json.Unmarshal(payload, &b)
	return b.N, err
}
