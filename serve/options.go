package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/notify"
)

// ErrNoTokens means that the address can be reached from elsewhere, and there are no
// tokens.
var ErrNoTokens = errors.New("other machines can reach this address, and no tokens are given")

// Options are a server's settings.
type Options struct {
	// Topics are the tables that are served, and no other is. One at least.
	Topics []string
	// Keys are the columns to read by, by topic; see consumer.Options.Key.
	Keys map[string]string
	// Tokens are who may do what, a line each: a name for logs, the token of at least 16 characters, or "sha256:" and the
	// hexadecimal SHA-256 of it, and scopes (read, publish, admin) with their topics:
	//
	//	shop  0c8ad2a1a5a15a5ad5e9bd4cbe9d9b6f  publish:orders  read:orders,invoices
	//	ops   sha256:9f86d081884c7d65...        admin:*
	//
	// publish is for new messages, read for messages and a topic's state; admin has both in it, and dead letters. "*" is all
	// topics, "orders_*" those whose names begin so. Empty lines, and those that begin with #, are comments. nil lets everybody do everything: Serve then
	// refuses an address that other machines can reach. Lines without a token are an error.
	Tokens []string
	// Origins are the sites whose pages may use the server from a browser (CORS), such as
	// "https://shop.example". None means none but the server's own page.
	Origins []string

	// Buffer is how many of a topic's newest messages are kept: a client that is further
	// behind is disconnected, and reads them from the table when it comes back. 0 means 8192.
	Buffer int
	// BufferBytes bounds their size. 0 means 32 MiB, or an equal share of 128 MiB if there are more than four topics.
	BufferBytes int
	// Heartbeat is how often a stream says something when there is nothing to say. 0
	// means 15 s.
	Heartbeat time.Duration
	// WriteTimeout is how long a client of a stream may take for one write of at most 64 KiB
	// before it is disconnected. 0 means 10 s.
	WriteTimeout time.Duration
	// ReconnectAfter is how soon a client is told to come back when its stream ends. 0 means 2 s.
	ReconnectAfter time.Duration
	// MaxBody is the largest message that can be published, in bytes. 0 means 1 MiB.
	MaxBody int64
	// MaxConnections is how many requests are served at a time, streams among them, each with a connection of its own or,
	// over HTTP/2, several on one. More wait for 2 s at most, and are then answered with 503 and Retry-After. Some
	// more connections are accepted, for health checks; when all are taken, the oldest without a request is closed.
	// 0 means 10,000.
	MaxConnections int
	// MaxPerClient is how many of them one address may have; more are answered with 429 and Retry-After. The loopback addresses
	// have no limit, because a proxy connects from there; raise it for a proxy on another machine. 0 means half of MaxConnections.
	MaxPerClient int
	// DatabaseRequests is how many requests that write, or ask for dead letters, use the database at the
	// same time, with one connection each. More wait for 2 s at most, and are then answered with 503 and
	// Retry-After. Keep it below the limit of the DB's pool, because the readers need connections too. 0 means 16.
	DatabaseRequests int
	// MaxMemory is how many bytes of messages requests hold at the same time: bodies that are published, answers to polls,
	// and rows that were read from the table for one client. More wait: streams with heartbeats, others for 2 s
	// before they are answered with 503; clients that read slowly are cut off meanwhile. 0 means 64 MiB.
	MaxMemory int64
	// KeyAge is how long an Idempotency-Key is remembered. 0 means 24 h.
	KeyAge time.Duration
	// StopTimeout is how long requests in hand may take when Serve is to end. 0 means 10 s.
	StopTimeout time.Duration

	// Ready, if not nil, is called once, when all topics are being read for the first time:
	// from then on /readyz answers 200, and streams begin. It must not block.
	Ready func()

	// Mode and Grace are those of the readers; see consumer.Options.
	Mode  string
	Grace time.Duration

	// Commands, if not nil, is how many statements were sent to the database, for the
	// metrics.
	Commands func() uint64
	// Tracer makes the spans of publishes; nil means otel.GetTracerProvider().
	Tracer trace.TracerProvider
	// Logger gets what an operator may want to know; nil means slog.Default().
	Logger *slog.Logger

	tokens    tokens        // Tokens
	reading   *memory       // of clients that read a table
	penalties chan struct{} // requests with a wrong token that wait for their answer
	penalty   time.Duration // how late the answer to a wrong token is; for a test in a hurry
	underWay  *requests
	memory    *memory
	requests  chan struct{} // those that use the database now
	crowded   time.Duration // how long a request may wait for another to end; for a test in a hurry
	patience  time.Duration // how long a hub may be behind a client that comes from another server; for another
	header    time.Duration // how long a client may take for its header; for another
	body      time.Duration // how long a client may take for its body; for another
	answer    time.Duration // how long a client may take to read an answer that is no stream; for another
	asking    time.Duration // how long the database may take to tell a topic's state; for another
}

func (o Options) withDefaults() (Options, error) {
	for _, wrong := range []struct {
		is   bool
		text string
	}{
		{len(o.Topics) == 0, "no topics"},
		{o.Buffer < 0 || o.BufferBytes < 0, "Buffer or BufferBytes is negative"},
		{o.Heartbeat < 0 || o.WriteTimeout < 0 || o.ReconnectAfter < 0 || o.KeyAge < 0 || o.StopTimeout < 0, "a duration is negative"},
		{o.MaxBody < 0 || o.MaxConnections < 0 || o.DatabaseRequests < 0 || o.MaxMemory < 0 || o.MaxPerClient < 0, "MaxBody, MaxConnections, MaxPerClient, DatabaseRequests or MaxMemory is negative"},
		{o.Mode == "handshake", "a handshake is for one consumer, not for a server's clients"},
	} {
		if wrong.is {
			return o, fmt.Errorf("serve: %w: %s", notify.ErrOptions, wrong.text)
		}
	}
	if o.Tokens != nil {
		var err error
		if o.tokens, err = parseTokens(o.Tokens); err != nil {
			return o, fmt.Errorf("serve: %w: Tokens: %w", notify.ErrOptions, err)
		}
		o.Tokens = nil // the hashes are enough
	}
	for _, topic := range o.Topics {
		if err := ident.Check(topic); err != nil {
			return o, err
		}
	}
	for _, origin := range o.Origins {
		if err := http.NewCrossOriginProtection().AddTrustedOrigin(origin); err != nil {
			return o, fmt.Errorf("serve: %w: origin %q: %w: write https://shop.example", notify.ErrOptions, origin, err)
		}
	}
	set(&o.Buffer, 8192)
	set(&o.BufferBytes, min(32<<20, 128<<20/len(o.Topics)))
	set(&o.Heartbeat, 15*time.Second)
	set(&o.WriteTimeout, 10*time.Second)
	set(&o.ReconnectAfter, 2*time.Second)
	set(&o.MaxBody, 1<<20)
	set(&o.MaxConnections, 10_000)
	set(&o.MaxPerClient, max(1, o.MaxConnections/2))
	set(&o.DatabaseRequests, 16)
	set(&o.MaxMemory, 64<<20)
	set(&o.KeyAge, 24*time.Hour)
	set(&o.StopTimeout, 10*time.Second)
	if o.Commands == nil {
		o.Commands = func() uint64 { return 0 }
	}
	if o.Ready == nil {
		o.Ready = func() {}
	}
	if o.Tracer == nil {
		o.Tracer = otel.GetTracerProvider()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	set(&o.patience, 5*time.Second)
	set(&o.header, 5*time.Second)
	set(&o.body, 30*time.Second)
	set(&o.asking, 5*time.Second)
	set(&o.answer, time.Minute)
	set(&o.crowded, 2*time.Second)
	set(&o.penalty, 500*time.Millisecond)
	o.penalties = make(chan struct{}, max(1, o.MaxConnections/16))
	o.underWay = newRequests(o.MaxConnections, o.MaxPerClient)
	o.memory = newMemory(o.MaxMemory)
	o.requests = make(chan struct{}, o.DatabaseRequests)
	o.reading = newMemory(reading)
	return o, nil
}

// set puts the default in the place of zero.
func set[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}
