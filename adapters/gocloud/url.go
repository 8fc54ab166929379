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

// opener opens mysql://user:password@host:3306/database?topic=T and
// ...&subscription=S. A subscription's URL may have visibility=DURATION and in_flight=NUMBER, as
// in SubscriptionOptions; further parameters are the driver's. Each has a DB of its own.
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
			return nil, fmt.Errorf("gocloud: visibility=%q: a duration such as 30s: %w", text, notify.ErrOptions)
		}
	}
	if text, there := take("in_flight"); there {
		if options.InFlight, err = strconv.Atoi(text); err != nil || options.InFlight < 1 {
			return nil, fmt.Errorf("gocloud: in_flight=%q: a number from 1 on: %w", text, notify.ErrOptions)
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

// open opens the database with those parameters that are left for the driver.
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
