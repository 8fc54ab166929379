package main

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/header"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// publishPatience is how long a publish in progress may take after Ctrl-C.
const publishPatience = 10 * time.Second

// The modes of produce.
const (
	modeNotify    = "notify"
	modeHandshake = "handshake"
)

type produceOptions struct {
	headers  []string
	batch    int
	mode     string
	printIDs bool
	setFlag  bool
}

func newProduce(a *app) *cobra.Command {
	var o produceOptions
	cmd := &cobra.Command{
		Use:   "produce TOPIC [MESSAGE...]",
		Short: "Publish messages: the arguments, or each line of stdin",
		Long: `Publishes each MESSAGE, or if there is none, each line of stdin without its newline and
otherwise unchanged. A line that arrives alone is published at once. Lines that arrive faster are
committed together: at most --batch of them, all or none.

The topic's wake trigger wakes the consumers. If the topic has none, produce calls the procedure
mqnotify_wake after each commit. If the database has neither, consumers find the messages by
polling, within a second.

With --mode handshake one producer and one consumer alternate on an advisory lock, and produce
waits while the consumer works. Start the consumer with consume --mode handshake.

produce waits for a server that goes away; --wait also waits for one at the start. If the
connection ends during a commit, it is unknown whether the messages are stored, and produce
fails. When it fails, it prints how many messages were committed before.`,
		Example: `  mqnotify produce orders 'hello'
  mqnotify produce orders --header kind=paid --print-ids '{"order":1}'
  tail -F access.log | mqnotify produce lines
  mqnotify produce orders --mode handshake < orders.txt`,
		Args: someNames("TOPIC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.produce(cmd.Context(), o, args[0], args[1:])
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.headers, "header", nil, "a header of every message, as `name=value`; may be repeated")
	flags.IntVar(&o.batch, "batch", 1000, "commit at most this many lines together")
	flags.StringVar(&o.mode, "mode", modeNotify, "notify, or handshake to alternate with one consumer")
	flags.BoolVar(&o.printIDs, "print-ids", false, "print the id of each committed message on a line")
	flags.BoolVar(&o.setFlag, "set-flag", false, "set the topic's one-row flag after each commit")
	completeWith(cmd, "mode", modeNotify, modeHandshake)
	return cmd
}

// publisher is a producer whose errors after the end of a handshake's Run have the reason for the end.
type publisher struct {
	*producer.Producer
	ended func() error // returns the reason; nil without a handshake
}

func (p *publisher) publish(ctx context.Context, messages []producer.Message) ([]uint64, error) {
	ids, err := p.Publish(ctx, messages...)
	if errors.Is(err, notify.ErrClosed) && p.ended != nil {
		err = cmp.Or(p.ended(), err)
	}
	return ids, err
}

func (a *app) produce(ctx context.Context, o produceOptions, topic string, messages []string) error {
	headers, err := parseHeaders(o.headers)
	if err != nil {
		return err
	}
	if o.batch < 1 {
		return usagef("--batch %d: 1 or more", o.batch)
	}
	if err := oneOf("mode", o.mode, modeNotify, modeHandshake); err != nil {
		return err
	}
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	to, stop, err := a.publisher(ctx, db, topic, o)
	if err != nil {
		return err
	}
	defer stop()
	wasThere := false // the server has answered
	words := feedWords{"a message", "published", "messages published"}
	return a.feed(ctx, messages, o.batch, words, func(ctx context.Context, payloads [][]byte) (int, error) {
		messages := make([]producer.Message, len(payloads))
		for i, payload := range payloads {
			messages[i] = producer.Message{Headers: headers, Payload: payload}
		}
		ids, err := a.publish(ctx, to, messages, wasThere)
		wasThere = err == nil
		if err == nil && o.printIDs {
			err = writeAll(a.out, idLines(ids))
		}
		return len(ids), err
	})
}

// publish publishes the messages. The first Ctrl-C does not interrupt a commit, whose outcome would then be unknown. If the
// connection is lost, or the server is busy, publish tries again, provided that the server answered before (wasThere) and that nothing was stored.
func (a *app) publish(ctx context.Context, to *publisher, messages []producer.Message, wasThere bool) ([]uint64, error) {
	waits := notify.Exponential(100*time.Millisecond, 5*time.Second)
	for {
		longer, release := server.Linger(ctx, publishPatience)
		ids, err := to.publish(longer, messages)
		release()
		if !wasThere || !producer.SafeToRetry(err) || !server.ConnectionLost(err) && !server.Busy(err) {
			return ids, err
		}
		wait := waits.NextBackOff()
		a.log.WarnContext(ctx, "the server is away or busy; trying again", "error", err, "wait", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// publisher opens the producer for o.mode. The caller calls stop to close it.
func (a *app) publisher(ctx context.Context, db *notify.DB, topic string, o produceOptions) (_ *publisher, stop func(), err error) {
	options := producer.Options{Logger: a.log, SetFlag: o.setFlag}
	if o.mode == modeHandshake {
		options.Mode = modeHandshake
	}
	p, err := producer.New(db, topic, options)
	if err != nil {
		return nil, nil, err
	}
	if o.mode == modeNotify {
		return &publisher{p, nil}, func() { _ = p.Close() }, nil // at the end of the command its error has no remedy
	}
	running, end := context.WithCancelCause(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end(p.Run(running))
	}()
	return &publisher{p, func() error { return context.Cause(running) }}, func() {
		end(context.Canceled)
		<-ended
		_ = p.Close()
	}, nil
}

func parseHeaders(pairs []string) (map[string]string, error) {
	headers := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		name, value, found := strings.Cut(pair, "=")
		if !found || name == "" {
			return nil, usagef("--header %q: write name=value", pair)
		}
		if !utf8.ValidString(pair) {
			return nil, usagef("--header %q: it is not UTF-8: move it into the message", pair)
		}
		if header.Reserved(name) {
			return nil, usagef("--header %q: names that begin with %s are reserved: choose another", pair, header.Prefix)
		}
		headers[name] = value
	}
	return headers, nil
}

func idLines(ids []uint64) string {
	var text []byte
	for _, id := range ids {
		text = append(strconv.AppendUint(text, id, 10), '\n')
	}
	return string(text)
}
