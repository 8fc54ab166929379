package gocloud

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"gocloud.dev/pubsub"
	"gocloud.dev/pubsub/batcher"

	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
)

func init() {
	o := new(opener)
	pubsub.DefaultURLMux().RegisterTopic("mysql", o)
	pubsub.DefaultURLMux().RegisterSubscription("mysql", o)
}

// opener opens the URLs that the package comment describes.
type opener struct{}

// OpenTopicURL implements [pubsub.TopicURLOpener].
func (*opener) OpenTopicURL(_ context.Context, u *url.URL) (*pubsub.Topic, error) {
	parameters := u.Query()
	for _, name := range []string{"subscription", "visibility", "in_flight"} {
		if parameters.Has(name) {
			return nil, fmt.Errorf("gocloud: %s is for a subscription's URL: %w", name, notify.ErrOptions)
		}
	}
	db, name, err := open(u, parameters)
	if err != nil {
		return nil, err
	}
	t := &topic{db: db, name: name, owned: true, queues: make(map[string]*queue.Queue)}
	return pubsub.NewTopic(t, &batcher.Options{MaxBatchSize: 1000, MaxHandlers: 4}), nil
}

// OpenSubscriptionURL implements [pubsub.SubscriptionURLOpener].
func (*opener) OpenSubscriptionURL(_ context.Context, u *url.URL) (*pubsub.Subscription, error) {
	parameters := u.Query()
	take := func(parameter string) (value string, there bool) {
		value, there = parameters.Get(parameter), parameters.Has(parameter)
		parameters.Del(parameter)
		return value, there
	}
	name, _ := take("subscription")
	if name == "" {
		return nil, fmt.Errorf("gocloud: name the subscription: ...?topic=T&subscription=S: %w", notify.ErrOptions)
	}
	var options SubscriptionOptions
	var err error
	if text, there := take("visibility"); there {
		if options.Visibility, err = time.ParseDuration(text); err != nil {
			return nil, fmt.Errorf("gocloud: visibility=%q: write a duration such as 30s: %w", text, notify.ErrOptions)
		}
	}
	if text, there := take("in_flight"); there {
		if options.InFlight, err = strconv.Atoi(text); err != nil || options.InFlight < 1 {
			return nil, fmt.Errorf("gocloud: in_flight=%q: write a number of at least 1: %w", text, notify.ErrOptions)
		}
	}
	db, topic, err := open(u, parameters)
	if err != nil {
		return nil, err
	}
	s := newSubscription(db, topic, name, options)
	s.owned = true
	return pubsub.NewSubscription(s,
		&batcher.Options{MaxBatchSize: 100, MaxHandlers: 2}, &batcher.Options{MaxBatchSize: 1000, MaxHandlers: 2}), nil
}

var errNoTopic = errors.New("gocloud: name the topic: mysql://user:password@host/database?topic=T")

// open opens the database with the remaining parameters, which are the driver's, and returns the topic's name.
func open(u *url.URL, parameters url.Values) (db *notify.DB, topic string, err error) {
	if topic = parameters.Get("topic"); topic == "" {
		return nil, "", errNoTopic
	}
	parameters.Del("topic")
	rest := *u
	rest.RawQuery = parameters.Encode()
	db, err = notify.Open(rest.String())
	return db, topic, err
}
