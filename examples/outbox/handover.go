package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"github.com/mqnotify/mqnotify/bridge"
	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
)

// handOver brings messages to the warehouse.
type handOver struct {
	db  *notify.DB
	url string
}

// hand is called again with the same message until it returns nil, after a crash too.
func (h handOver) hand(ctx context.Context, m consumer.Message) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(m.Payload))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", bridge.MessageID(m)) // the same each time
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	switch code := response.StatusCode; {
	case code < 300:
		return nil
	case code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests:
		refused := fmt.Errorf("the warehouse refuses it: %s", response.Status)
		return consumer.Bury(ctx, h.db.Pool(), group, m, 1, refused) // for somebody to look at; the next ones go on
	default:
		return fmt.Errorf("the warehouse: %s", response.Status)
	}
}
