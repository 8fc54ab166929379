package serve

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/notify"
)

// ErrNoTokens means that other machines can reach the address, and Options.Tokens is nil.
var ErrNoTokens = errors.New("other machines can reach this address, and no tokens are given")

// Options are a server's settings.
type Options struct {
	// Topics are the tables to serve, at least one. No other table can be read or written.
	Topics []string
	// Tokens has a line for each token: a name for logs, the token of at least 16 characters, or "sha256:" and its hexadecimal SHA-256,
	// and scopes (read, publish, admin) with their topics:
	//
	//	shop  0c8ad2a1a5a15a5ad5e9bd4cbe9d9b6f  publish:orders  read:orders,invoices
	//	ops   sha256:9f86d081884c7d65...        admin:*
	//
	// publish allows new messages, read allows to read messages and a topic's state, and admin allows both and dead letters. "*" is all
	// topics, "orders_*" all whose names begin with orders_. Empty lines are ignored, and lines that begin with # are comments. nil means
	// that every request may do everything; Serve then refuses an address that other machines can reach. If Tokens is not nil but has no
	// token, New fails.
	Tokens []string
	// Origins are the sites whose pages may use the server from a browser (CORS), such as "https://shop.example". Empty means only the
	// server's own page.
	Origins []string

	// Buffer is how many of a topic's newest messages the server keeps. It disconnects a client that is further behind; the client
	// reconnects and gets these messages from the table. 0 means 8192.
	Buffer int
	// BufferBytes limits the bytes of a topic's kept messages. 0 means 32 MiB, or an equal share of 128 MiB if there are more than four
	// topics.
	BufferBytes int
	// Heartbeat is how often an idle stream sends a comment. 0 means 15 s.
	Heartbeat time.Duration
	// WriteTimeout is how long one write of at most 64 KiB to a client of a stream may take before the client is disconnected. 0 means
	// 10 s.
	WriteTimeout time.Duration
	// ReconnectAfter is the time to reconnect that clients are told when a stream ends. 0 means 2 s.
	ReconnectAfter time.Duration
	// MaxBody is the largest message that can be published, in bytes: at most 1 GiB. 0 means 1 MiB.
	MaxBody int64
	// MaxConnections is how many requests are served at a time, including streams. Over HTTP/2 several share a connection. Further
	// requests wait for at most 2 s, and then get 503 with Retry-After. Some more connections are accepted for health checks; when all are
	// taken, the oldest without a running request is closed. At most 1,048,576; 0 means 10,000.
	MaxConnections int
	// MaxPerClient is how many requests of one address are served at a time. Further requests get 429 with Retry-After. Loopback addresses
	// have no limit, because a proxy connects from there; for a proxy on another machine, raise it. 0 means half of MaxConnections.
	MaxPerClient int
	// DatabaseRequests is how many requests that write or ask for dead letters use the database at a time, with one connection each.
	// Further requests wait for at most 2 s, and then get 503 with Retry-After. Keep it below the limit of the DB's pool, because the
	// readers need connections too. 0 means 16.
	DatabaseRequests int
	// MaxMemory is how many bytes of messages requests hold at the same time: published bodies, answers to polls, and rows that were read
	// from the table for one client. Further requests wait: streams with heartbeats, the others for at most 2 s, after which they get 503.
	// Meanwhile the server disconnects clients that read slowly. 0 means 64 MiB.
	MaxMemory int64
	// KeyAge is how long an Idempotency-Key is kept. 0 means 24 h.
	KeyAge time.Duration
	// StopTimeout is how long running requests may take after Serve's context has ended. 0 means 10 s.
	StopTimeout time.Duration

	// Ready, if not nil, is called once, when all topics are being read for the first time. From then on /readyz answers 200, and streams
	// begin. It must not block.
	Ready func()

	// Mode and Grace are settings of the readers; see consumer.Options.
	Mode  string
	Grace time.Duration

	// Commands, if not nil, returns the number of statements sent to the database, for the metrics.
	Commands func() uint64
	// Tracer makes the spans of publishes; nil means otel.GetTracerProvider().
	Tracer trace.TracerProvider
	// Logger gets the server's log lines; nil means slog.Default().
	Logger *slog.Logger

	tokens    tokens        // parsed from Tokens
	reading   *memory       // limits the memory of reads of tables
	penalties chan struct{} // requests with a wrong token that wait for their answer
	underWay  *requests
	memory    *memory
	requests  chan struct{} // requests that use the database now

	// The following are shorter in tests.
	penalty  time.Duration // the delay of the answer to a wrong token
	crowded  time.Duration // how long a request may wait for others to end
	patience time.Duration // how long a hub may be behind the cursor of another server's client
	header   time.Duration // how long a client may take to send its header
	body     time.Duration // how long a client may take to send its body
	answer   time.Duration // how long a client may take to read an answer that is no stream
	asking   time.Duration // how long the database may take to answer for a topic's state
}

func (o Options) withDefaults() (Options, error) {
	for _, wrong := range []struct {
		is   bool
		text string
	}{
		{len(o.Topics) == 0, "Topics is empty: name the tables to serve"},
		{o.Buffer < 0 || o.BufferBytes < 0, "Buffer or BufferBytes is negative"},
		{o.Heartbeat < 0 || o.WriteTimeout < 0 || o.ReconnectAfter < 0 || o.KeyAge < 0 || o.StopTimeout < 0 || o.Grace < 0, "a duration is negative"},
		{o.MaxBody < 0 || o.MaxConnections < 0 || o.DatabaseRequests < 0 || o.MaxMemory < 0 || o.MaxPerClient < 0, "MaxBody, MaxConnections, MaxPerClient, DatabaseRequests or MaxMemory is negative"},
		{o.MaxBody > 1<<30, "MaxBody is more than 1 GiB, which no database server takes"},
		{max(o.MaxConnections, o.DatabaseRequests) > 1<<20, "MaxConnections or DatabaseRequests is more than 1,048,576"},
		{!slices.Contains([]string{"", "poll", "handshake"}, o.Mode), fmt.Sprintf("no Mode %q: poll or empty", o.Mode)},
		{o.Mode == "handshake", "Mode is handshake, which is for one producer and one consumer: leave it empty"},
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
		o.Tokens = nil // the hashes suffice
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
	o.Buffer = cmp.Or(o.Buffer, 8192)
	o.BufferBytes = cmp.Or(o.BufferBytes, min(32<<20, 128<<20/len(o.Topics)))
	o.Heartbeat = cmp.Or(o.Heartbeat, 15*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 10*time.Second)
	o.ReconnectAfter = cmp.Or(o.ReconnectAfter, 2*time.Second)
	o.MaxBody = cmp.Or(o.MaxBody, 1<<20)
	o.MaxConnections = cmp.Or(o.MaxConnections, 10_000)
	o.MaxPerClient = cmp.Or(o.MaxPerClient, max(1, o.MaxConnections/2))
	o.DatabaseRequests = cmp.Or(o.DatabaseRequests, 16)
	o.MaxMemory = cmp.Or(o.MaxMemory, 64<<20)
	o.KeyAge = cmp.Or(o.KeyAge, 24*time.Hour)
	o.StopTimeout = cmp.Or(o.StopTimeout, 10*time.Second)
	if o.Commands == nil {
		o.Commands = func() uint64 { return 0 }
	}
	if o.Ready == nil {
		o.Ready = func() {}
	}
	o.Tracer = cmp.Or(o.Tracer, otel.GetTracerProvider())
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.patience = cmp.Or(o.patience, 5*time.Second)
	o.header = cmp.Or(o.header, 5*time.Second)
	o.body = cmp.Or(o.body, 30*time.Second)
	o.asking = cmp.Or(o.asking, 5*time.Second)
	o.answer = cmp.Or(o.answer, time.Minute)
	o.crowded = cmp.Or(o.crowded, 2*time.Second)
	o.penalty = cmp.Or(o.penalty, 500*time.Millisecond)
	o.penalties = make(chan struct{}, max(1, o.MaxConnections/16))
	o.underWay = newRequests(o.MaxConnections, o.MaxPerClient)
	o.memory = newMemory(o.MaxMemory)
	o.requests = make(chan struct{}, o.DatabaseRequests)
	o.reading = newMemory(reading)
	return o, nil
}
