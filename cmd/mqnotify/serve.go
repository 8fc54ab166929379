package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"slices"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/loopback"
	"github.com/mqnotify/mqnotify/internal/metrics"
	"github.com/mqnotify/mqnotify/internal/private"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/serve"
)

// serveOptions are serve's flags.
type serveOptions struct {
	serve.Options
	listen, tokens, cert, key string
}

func newServe(a *app) *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve TOPIC...",
		Short: "Serve topics over HTTP: Server-Sent Events, publishing, and a page",
		Long: `Serves these topics, and no other, until Ctrl-C:

  GET  /                          a page: rates, lag, a live tail, groups, dead letters
  GET  /topics/TOPIC/events       messages as Server-Sent Events; resumes by Last-Event-ID
  GET  /topics/TOPIC/messages     the same by long polling: ?after=CURSOR&wait=30s
  POST /topics/TOPIC/messages     publishes the body; Idempotency-Key makes it once
  GET  /healthz /readyz /metrics

One reader reads each topic, however many clients there are. The file of --tokens has a
line for each token: a name, the token or sha256: and its hash, and scopes such as
read:orders,invoices publish:orders or admin:*; only its owner may read it (chmod 600).
Without it the address must be one that this machine alone can reach. docs/guide/serve.md has the rest.`,
		Example: `  mqnotify serve orders invoices
  curl -N http://127.0.0.1:8080/topics/orders/events
  mqnotify serve orders --listen :8443 --tokens tokens --tls-cert cert.pem --tls-key key.pem`,
		Args:              someNames("TOPIC"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Topics = args
			return a.serve(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8080", "the `address` to listen on; port 0 is any that is free")
	flags.StringVar(&o.tokens, "tokens", "", "a `file` of tokens; needed where other machines can reach the address")
	flags.StringVar(&o.cert, "tls-cert", "", "a `file` with the certificate; HTTPS then")
	flags.StringVar(&o.key, "tls-key", "", "a `file` with its key")
	flags.StringSliceVar(&o.Origins, "cors", nil, "`origins` whose pages may use the server, with commas between them; default none")
	flags.Int64Var(&o.MaxBody, "max-body", 1<<20, "the largest message that can be published, in `bytes`")
	flags.IntVar(&o.MaxConnections, "max-connections", 10_000, "how many requests are served at a time, streams among them; more wait for 2s, then get 503")
	flags.IntVar(&o.MaxPerClient, "max-per-client", 0, "how many of them one address may have; default half; this machine has no limit")
	flags.IntVar(&o.DatabaseRequests, "max-database-requests", 16, "how many requests use the database at a time, with a connection each; more wait, then get 503")
	flags.Int64Var(&o.MaxMemory, "max-memory", 64<<20, "how many `bytes` of messages requests hold at a time; slow clients are cut off for it")
	flags.IntVar(&o.Buffer, "buffer", 8192, "how many `messages` a client may be behind before it is disconnected")
	flags.DurationVar(&o.Heartbeat, "heartbeat", 0, "how often a stream says something; default 15s")
	completeNothing(cmd, "listen", "cors", "max-body", "max-connections", "max-per-client", "max-database-requests", "max-memory", "buffer", "heartbeat")
	return cmd
}

// memoryLimit is when the garbage of large messages is collected sooner than usual. It limits no message.
const memoryLimit = 400 << 20

func (a *app) serve(ctx context.Context, o serveOptions) error {
	if (o.cert == "") != (o.key == "") {
		return usagef("--tls-cert and --tls-key: give both")
	}
	var err error
	if o.tokens != "" {
		if o.Tokens, err = serve.ReadTokens(o.tokens); err != nil {
			return err
		}
	}
	if _, _, err := net.SplitHostPort(o.listen); err != nil {
		return usagef("--listen %q: write host:port", o.listen)
	}
	if o.tokens == "" && !loopback.Is(o.listen) {
		return usagef("--listen %s: %w: write a file of --tokens, or listen on 127.0.0.1", o.listen, serve.ErrNoTokens)
	}
	var secure *tls.Config
	if o.cert != "" {
		pair, err := keyPair(o.cert, o.key)
		if err != nil {
			return fmt.Errorf("read the certificate: %w", err)
		}
		secure = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	config, err := a.config()
	if err != nil {
		return err
	}
	if config.DBName == "" {
		return errNoDatabase
	}
	o.Commands = metrics.CountCommands(config)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	db, err := notify.OpenConfig(config)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer closeDB(db)
	o.Logger = a.log
	if o.Topics, err = servable(ctx, db, o.Topics); err != nil {
		return err
	}
	url := make(chan string, 1)
	o.Ready = func() { a.log.InfoContext(ctx, "serving", "url", <-url, "topics", o.Topics) }
	service, err := serve.New(db, o.Options)
	if errors.Is(err, notify.ErrOptions) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	scheme := "http"
	if secure != nil {
		scheme = "https"
	} else if !loopback.Is(listener.Addr().String()) {
		a.log.WarnContext(ctx, "tokens and messages go unencrypted: give --tls-cert and --tls-key, or put a proxy with TLS before it")
	}
	url <- scheme + "://" + listener.Addr().String() + "/"
	return service.Serve(ctx, listener, secure)
}

// keyPair reads a certificate and its key, whose file other users must not be able to read.
func keyPair(cert, key string) (tls.Certificate, error) {
	chain, err := os.ReadFile(cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	secret, err := private.ReadFile(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(chain, secret)
}

// servable are the tables' names, as the server has them, each once.
func servable(ctx context.Context, db *notify.DB, topics []string) (names []string, err error) {
	for _, topic := range topics {
		t, err := table.Describe(ctx, db.Pool(), db.Name(), topic)
		if err != nil {
			return nil, err
		}
		if t.IsView {
			return nil, fmt.Errorf("%s is a view: name the table behind it: %w", t, table.ErrView)
		}
		key, err := t.KeyColumn("")
		if err == nil {
			err = t.InOrder(key)
		}
		if err != nil {
			return nil, err
		}
		// What it may not read later would only be logged, again and again.
		c, err := consumer.New(db, t.Name, consumer.Options{})
		if err != nil {
			return nil, err
		}
		if _, err := c.Status(ctx); server.NoPrivilege(err) {
			return nil, err
		}
		if !slices.Contains(names, t.Name) {
			names = append(names, t.Name)
		}
	}
	return names, nil
}
