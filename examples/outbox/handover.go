package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"github.com/mqnotify/mqnotify"
	"github.com/mqnotify/mqnotify/bridge"
)

// handOver sends messages to the warehouse.
type handOver struct {
	url string
}

// hand is called again with the same message until it returns nil, after a crash too.
func (h handOver) hand(ctx context.Context, m mqnotify.Message[[]byte]) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(m.Value))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", bridge.MessageID(m.Message)) // the same each time
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	switch code := response.StatusCode; {
	case code < 300:
		return nil
	case code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests:
		return fmt.Errorf("%w: the warehouse refuses it: %s", mqnotify.ErrDead, response.Status) // the next messages are not held up
	default:
		return fmt.Errorf("the warehouse: %s", response.Status)
	}
}
