package sinktest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/bridge"
	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
)

// Close may be called at any time, twice, and by several goroutines at once. It ends a running Send.
func (to Target) testClose(t *testing.T) {
	const topic = "close"
	sink := to.open(t, topic)
	send(t, sink, messages(topic, 1, 1), 1)
	var sending sync.WaitGroup
	begun := make(chan struct{})
	sending.Go(func() {
		for id := 2; ; id += 10 {
			if _, err := sink.Send(context.WithoutCancel(t.Context()), messages(topic, id, id+9)); err != nil {
				return
			}
			if id == 2 {
				close(begun)
			}
		}
	})
	select {
	case <-begun:
	case <-time.After(patience):
		t.Fatal("Send does not return")
	}
	var closing sync.WaitGroup
	for range 8 {
		closing.Go(func() {
			if err := sink.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closing.Wait()
	sending.Wait()
	require.NoError(t, sink.Close())
	_, err := sink.Send(t.Context(), messages(topic, 1, 1))
	require.ErrorIs(t, err, notify.ErrClosed)
	unused, err := to.Destination(topic).Open(t.Context())
	require.NoError(t, err)
	require.NoError(t, unused.Close())
}

// Refused credentials are a PermanentError that does not contain them.
func (to Target) testCredentials(t *testing.T) {
	if to.Refused == nil {
		t.Skip("Target.Refused is not set")
	}
	d := to.Refused("credentials")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sink, err := d.Open(ctx)
	if to.ConnectsOnSend {
		require.NoError(t, err)
		_, err = sink.Send(ctx, messages("credentials", 1, 1))
		require.NoError(t, sink.Close())
	}
	var permanent *bridge.PermanentError
	require.ErrorAs(t, err, &permanent)
	to.requireNoSecret(t, err.Error())
	to.requireNoSecret(t, d.Name)
}

// Send returns when its context ends, even if the destination neither answers nor reads, and Close does not wait for the destination.
// Unconfirmed messages are sent again.
func (to Target) testFrozen(t *testing.T) {
	if to.Freeze == nil {
		t.Skip("Target.Freeze is not set")
	}
	const topic = "frozen"
	all := messages(topic, 1, 100)
	for i := range all[30:80] { // more than a connection buffers
		all[30+i].Payload = bytes.Repeat([]byte("x"), cmp.Or(to.Held, 250_000))
	}
	send(t, to.open(t, topic), all[:10], 10)
	for _, page := range [][]consumer.Message{all[10:30], all[30:]} {
		sink := to.open(t, topic)
		send(t, sink, page[:1], 1)
		thaw := sync.OnceFunc(to.Freeze(topic))
		defer thaw()
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			n, err := sink.Send(ctx, page[1:])
			if err == nil || n == len(page)-1 {
				t.Error("a frozen destination has confirmed all messages")
			}
			if err := sink.Close(); err != nil {
				t.Error(err)
			}
		}()
		select { // until Send hangs, most likely; an early end is tested as well
		case <-ended:
		case <-time.After(200 * time.Millisecond):
		}
		cancel(errors.New("the end"))
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("Send does not end with its context, or Close does not")
			thaw()
			<-ended
		}
		thaw()
		send(t, to.open(t, topic), page[1:], 20)
	}
	want, got := wanted(all), to.Read(t, topic)
	if !to.Deduplicates {
		got = once(got)
	}
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i].ID, got[i].ID)
		if want[i] != got[i] { // too long to print
			t.Fatalf("the payload or trace of %s is different", want[i].ID)
		}
	}
}
