package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"

	"github.com/mqnotify/mqnotify/producer"
)

// origin is where messages come from: what parseOrigin makes of a URL.
type origin struct {
	// Name is the origin without its credentials, for logs and errors.
	Name string
	// Key is the origin's name among the ids of imported messages, 255 bytes at most: no two
	// origins that give the same id to different messages have the same.
	Key string
	// Open makes a messageSource, as Destination.Open makes a Sink.
	Open func(ctx context.Context) (messageSource, error)
}

// messageSource gives messages of one origin over one connection. An implementation promises
// that
//
//   - Receive waits until there is a message, or the context ends, and returns the
//     messages that are there, at most so many, in their order;
//   - messages that Receive returned come again over another connection, unless Ack has
//     said that they are stored; Ack is about all that the last Receive returned;
//   - Receive and Ack are called by one goroutine in turns;
//   - Close may be called at any time, by several goroutines, and twice, and ends a
//     Receive that waits; no error has a credential in it.
type messageSource interface {
	Receive(ctx context.Context, most int) ([]received, error)
	Ack(ctx context.Context) error
	Close() error
}

// received is a message of a broker's.
type received struct {
	// ID is what the broker, or its publisher, calls the message; empty when it has no
	// name: it may then be stored twice.
	ID string
	producer.Message
}

// key is the ID as it is stored.
func (r received) key() string { return bounded(r.ID) }

// bounded is a name that fits into a column of table mqnotify_import.
func bounded(name string) string {
	if len(name) <= 255 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// serverKey names a server among others of its kind: by its address and the part of it that
// the path selects, because no other name stays the same for all its clients.
func serverKey(kind, addr, part string) string {
	return kind + "://" + strings.ToLower(addr) + "/" + url.PathEscape(part) + "/"
}

// origins are those that messages can come from, by their URL's scheme.
var origins = map[string]func(p *params) (*origin, error){
	"nats":   originNATS,
	"tls":    originNATS,
	"redis":  originRedis,
	"rediss": originRedis,
	"amqp":   originAMQP,
	"amqps":  originAMQP,
	"mqtt":   originMQTT,
	"mqtts":  originMQTT,
}

// parseOrigin makes an origin of a URL, for a topic that its messages go into. It does
// not connect. Its error is notify.ErrOptions and shows no credential.
func parseOrigin(text, topic string) (*origin, error) {
	p, err := newParams(text, topic)
	if err != nil {
		return nil, err
	}
	parse, known := origins[p.url.Scheme]
	if !known {
		return nil, p.wrongf("messages come from %s", strings.Join(names(origins), ", "))
	}
	o, err := parse(p)
	if err != nil {
		return nil, err
	}
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
