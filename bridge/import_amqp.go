package bridge

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/mqnotify/mqnotify/producer"
)

// amqpSource is a consumer of a queue. A message's id is its publisher's message-id.
type amqpSource struct {
	conn       *amqp.Connection
	channel    *amqp.Channel
	deliveries <-chan amqp.Delivery
	last       uint64 // the last delivery tag
	// Close closes ended, which ends the goroutine that reads ahead.
	ended chan struct{}
	once  sync.Once
}

// amqpAhead limits the messages that are read ahead. Further ones wait in the client.
const amqpAhead = 1000

func originAMQP(p *params) *origin {
	d := newAMQP(p)
	queue, prefetch := p.text("queue", ""), int(p.number("prefetch", 1, 1000))
	if queue == "" {
		p.note("queue=: name it")
	}
	if prefetch > math.MaxUint16 { // the protocol would take 65536 for no limit
		p.note("prefetch=%d: write %d at most", prefetch, math.MaxUint16)
	}
	uri, err := amqp.ParseURI(d.uri)
	if err != nil { // don't show err, whose text contains the password
		p.note("its host or its path can't be read")
	}
	key := serverKey("amqp", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), uri.Vhost)
	return &origin{Key: key + queue, Open: func(ctx context.Context) (messageSource, error) {
		conn, channel, err := d.connect(ctx)
		if err != nil {
			return nil, err
		}
		s := &amqpSource{conn: conn, channel: channel, ended: make(chan struct{})}
		var deliveries <-chan amqp.Delivery
		if err = channel.Qos(prefetch, 0, false); err == nil {
			deliveries, err = channel.Consume(queue, "", false, false, false, false, nil)
		}
		if err != nil {
			_ = conn.Close()
			if d.missing(err) {
				return nil, permanent(fmt.Errorf("consume queue %q: %w", queue, err))
			}
			return nil, amqpError(fmt.Sprintf("consume queue %q", queue), err)
		}
		d.found.Store(true)
		s.deliveries = s.ahead(deliveries, min(prefetch, amqpAhead))
		return s, nil
	}}
}

// ahead reads up to room messages ahead, until the channel or the source is closed. The messages that arrive while one batch is stored
// become the next batch. The client's own channel has no buffer, so that without reading ahead every message would be a transaction of
// its own.
func (s *amqpSource) ahead(deliveries <-chan amqp.Delivery, room int) <-chan amqp.Delivery {
	read := make(chan amqp.Delivery, room)
	go func() {
		defer close(read)
		for d := range deliveries {
			select {
			case read <- d:
			case <-s.ended:
				return
			}
		}
	}()
	return read
}

func (s *amqpSource) Receive(ctx context.Context, most int) (all []received, err error) {
	for len(all) < most {
		var d amqp.Delivery
		var open bool
		if len(all) == 0 {
			select {
			case d, open = <-s.deliveries:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		} else {
			select {
			case d, open = <-s.deliveries:
			default:
				return all, nil
			}
		}
		if !open {
			if len(all) > 0 {
				return all, nil // Ack will fail
			}
			return nil, errors.New("the channel was closed")
		}
		s.last = d.DeliveryTag
		all = append(all, received{d.MessageId, producer.Message{Headers: amqpHeaders(d), Payload: d.Body}})
	}
	return all, nil
}

// amqpHeaders returns a message's headers and the properties that describe it.
func amqpHeaders(d amqp.Delivery) map[string]string {
	headers := map[string]string{}
	for name, value := range d.Headers {
		headers[name] = fmt.Sprint(value)
	}
	for name, value := range map[string]string{
		"message-id": d.MessageId, "content-type": d.ContentType, "content-encoding": d.ContentEncoding,
		"correlation-id": d.CorrelationId, "reply-to": d.ReplyTo, "routing-key": d.RoutingKey,
	} {
		if value != "" {
			headers[name] = value
		}
	}
	return headers
}

func (s *amqpSource) Ack(context.Context) error {
	if err := s.channel.Ack(s.last, true); err != nil {
		return amqpError("acknowledge", err)
	}
	return nil
}

func (s *amqpSource) Close() error {
	s.once.Do(func() { close(s.ended) })
	_ = s.conn.CloseDeadline(time.Now().Add(time.Second)) // its error is irrelevant: the broker delivers unacknowledged messages again
	return nil
}
