package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"

	"github.com/mqnotify/mqnotify/producer"
)

// origin is a source of messages, made by parseOrigin from a URL.
type origin struct {
	// Name is the URL without its credentials, for logs and errors.
	Name string
	// Key distinguishes the message ids of this origin from those of others in mqnotify_import. It has at most 255 bytes.
	Key string
	// Open makes a messageSource, as Destination.Open makes a Sink.
	Open func(ctx context.Context) (messageSource, error)
}

// messageSource receives messages of one origin over one connection. An implementation promises:
//
//   - Receive waits until there is a message or ctx ends. It returns the available messages in order, but no more than most.
//   - Ack acknowledges all messages of the last Receive. Messages that were not acknowledged are received again over another connection.
//   - Close may be called at any time, by several goroutines, and twice. It ends a Receive that waits.
//   - No error contains a credential.
//
// One goroutine calls Receive and Ack in turn.
type messageSource interface {
	Receive(ctx context.Context, most int) ([]received, error)
	Ack(ctx context.Context) error
	Close() error
}

// received is a message from a broker.
type received struct {
	// ID is the id that the broker or the publisher gave to the message. A message with an empty ID may be stored twice.
	ID string
	producer.Message
}

// key returns the ID in the form that is stored.
func (r received) key() string { return bounded(r.ID) }

// bounded returns a name that fits into a column of mqnotify_import: a hash if the name is too long.
func bounded(name string) string {
	if len(name) <= 255 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// serverKey identifies a server by its address and the part of it that the URL's path selects, because no other name is the same for all
// its clients.
func serverKey(kind, addr, part string) string {
	return kind + "://" + strings.ToLower(addr) + "/" + url.PathEscape(part) + "/"
}

// origins are the parsers of origins by URL scheme.
var origins = map[string]func(p *params) *origin{
	"nats":   originNATS,
	"tls":    originNATS,
	"redis":  originRedis,
	"rediss": originRedis,
	"amqp":   originAMQP,
	"amqps":  originAMQP,
	"mqtt":   originMQTT,
	"mqtts":  originMQTT,
}

// parseOrigin parses the URL of an origin whose messages go into topic. It does not connect. Its error is notify.ErrOptions and contains
// no credential.
func parseOrigin(text, topic string) (*origin, error) {
	p, err := newParams(text, topic)
	if err != nil {
		return nil, err
	}
	parse, known := origins[p.url.Scheme]
	if !known {
		return nil, p.wrongf("unknown scheme; write one of %s", strings.Join(names(origins), ", "))
	}
	o := parse(p)
	if err := p.done(); err != nil {
		return nil, err
	}
	o.Name = p.shown
	o.Key = bounded(o.Key)
	open := o.Open
	o.Open = func(ctx context.Context) (messageSource, error) {
		source, err := open(ctx)
		return source, p.openError(err)
	}
	return o, nil
}
