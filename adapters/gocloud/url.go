package gocloud

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"gocloud.dev/pubsub"
	"gocloud.dev/pubsub/batcher"

	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
)

// Scheme is that of the URLs which this package registers with gocloud.dev/pubsub.
const Scheme = "mysql"

func init() {
	o := new(URLOpener)
	pubsub.DefaultURLMux().RegisterTopic(Scheme, o)
	pubsub.DefaultURLMux().RegisterSubscription(Scheme, o)
}

// URLOpener opens mysql://user:password@host:3306/database?topic=T and
// ...&subscription=S; further parameters are the driver's. Each has a DB of its own.
type URLOpener struct{}

// OpenTopicURL implements [pubsub.TopicURLOpener].
func (*URLOpener) OpenTopicURL(_ context.Context, u *url.URL) (*pubsub.Topic, error) {
	db, name, subscription, err := open(u)
	if err != nil {
		return nil, err
	}
	if subscription != "" {
		_ = db.Close()
		return nil, fmt.Errorf("gocloud: a topic's URL names no subscription: %w", queue.ErrOptions)
	}
	t := &topic{db: db, name: name, owned: true, queues: make(map[string]*queue.Queue)}
	return pubsub.NewTopic(t, &batcher.Options{MaxBatchSize: 1000, MaxHandlers: 4}), nil
}

// OpenSubscriptionURL implements [pubsub.SubscriptionURLOpener].
func (*URLOpener) OpenSubscriptionURL(_ context.Context, u *url.URL) (*pubsub.Subscription, error) {
	db, topic, name, err := open(u)
	if err != nil {
		return nil, err
	}
	if name == "" {
		_ = db.Close()
		return nil, fmt.Errorf("gocloud: name the subscription: ...?topic=T&subscription=S: %w", queue.ErrOptions)
	}
	s := newSubscription(db, topic, name, SubscriptionOptions{})
	s.owned = true
	return pubsub.NewSubscription(s,
		&batcher.Options{MaxBatchSize: 100, MaxHandlers: 2}, &batcher.Options{MaxBatchSize: 1000, MaxHandlers: 2}), nil
}

var errNoTopic = errors.New("gocloud: name the topic: mysql://user:password@host/database?topic=T")

func open(u *url.URL) (db *notify.DB, topic, subscription string, err error) {
	parameters := u.Query()
	topic, subscription = parameters.Get("topic"), parameters.Get("subscription")
	if topic == "" {
		return nil, "", "", errNoTopic
	}
	parameters.Del("topic")
	parameters.Del("subscription")
	rest := *u
	rest.RawQuery = parameters.Encode()
	db, err = notify.Open(rest.String())
	return db, topic, subscription, err
}
