package bridge

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"

	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// mqttSource subscribes with QoS 1 in a session that the broker keeps. A message's id is
// its user property mqnotify-message-id or message-id: MQTT itself has none.
type mqttSource struct {
	*mqttConn
	session  *state.State
	incoming chan *paho.Publish
	got      []*paho.Publish
	ended    chan struct{} // closed by Close
	once     sync.Once
}

const (
	// mqttUnacked is the Receive Maximum: how many unacknowledged messages the broker may send. It is the largest value, because
	// mosquitto 2.0.11 counts the messages that a killed import had in hand forever, and sends nothing once they reach the number.
	mqttUnacked = math.MaxUint16
	// mqttAhead limits the messages that are read ahead. Further ones wait in the connection.
	mqttAhead = 1000
)

func originMQTT(p *params) *origin {
	d := newMQTT(p)
	filter := p.text("topic", "")
	if filter == "" {
		p.note("topic=: name it, or a filter such as shop/%%23, which means shop/#")
	}
	if d.clientID == "" { // it must be unique, because a new connection with the same client ID ends the other one
		sum := sha256.Sum256([]byte(filter))
		d.clientID = "mqnotify-" + p.topic + "-" + hex.EncodeToString(sum[:4])
	}
	return &origin{Key: serverKey("mqtt", d.addr, "") + filter, Open: func(ctx context.Context) (messageSource, error) { return d.subscribe(ctx, filter) }}
}

func (d *mqttDestination) subscribe(ctx context.Context, filter string) (messageSource, error) {
	s := &mqttSource{session: state.NewInMemory(), incoming: make(chan *paho.Publish, mqttAhead), ended: make(chan struct{})}
	most, expiry := uint16(mqttUnacked), uint32(math.MaxUint32) // the session never expires
	conn, _, err := d.connect(ctx, paho.ClientConfig{
		Session: s.session, EnableManualAcknowledgment: true, SendAcksInterval: 20 * time.Millisecond,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(m paho.PublishReceived) (bool, error) {
			select {
			case s.incoming <- m.Packet:
			case <-s.ended:
			}
			return true, nil
		}},
	}, &paho.Connect{Properties: &paho.ConnectProperties{ReceiveMaximum: &most, SessionExpiryInterval: &expiry}})
	if err != nil {
		close(s.ended)
		return nil, errors.Join(err, s.session.Close())
	}
	s.mqttConn = conn
	_, err = conn.client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{
		{Topic: filter, QoS: 1, RetainHandling: 1}, // the broker sends retained messages once, not at each start
	}})
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("subscribe %q: %w", filter, err)
	}
	return s, nil
}

func (s *mqttSource) Receive(ctx context.Context, most int) (all []received, err error) {
	s.got = s.got[:0]
	for len(all) < most {
		var m *paho.Publish
		if len(all) == 0 {
			select {
			case m = <-s.incoming:
			case <-s.gone:
				return nil, s.why
			case <-s.closed:
				return nil, notify.ErrClosed
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		} else {
			select {
			case m = <-s.incoming:
			default:
				return all, nil
			}
		}
		s.got = append(s.got, m)
		all = append(all, mqttReceived(m))
	}
	return all, nil
}

func mqttReceived(m *paho.Publish) received {
	r := received{Message: producer.Message{Headers: map[string]string{"mqtt-topic": m.Topic}, Payload: m.Payload}}
	if m.Properties == nil {
		return r
	}
	for _, u := range m.Properties.User {
		r.Headers[u.Key] = u.Value
	}
	if m.Properties.ContentType != "" {
		r.Headers["content-type"] = m.Properties.ContentType
	}
	r.ID = cmp.Or(r.Headers[fieldMessageID], r.Headers["message-id"])
	return r
}

func (s *mqttSource) Ack(context.Context) error {
	for _, m := range s.got {
		if m.QoS == 0 {
			continue
		}
		if err := s.client.Ack(m); err != nil {
			return err
		}
	}
	return nil
}

func (s *mqttSource) Close() error {
	s.once.Do(func() { close(s.ended) })
	s.end()
	return s.session.Close()
}
