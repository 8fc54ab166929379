package main

import (
	"context"
	"crypto/tls"
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

type serveOptions struct {
	serve.Options
	listen, tokens, cert, key string
}

func newServe(a *app) *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve TOPIC...",
		Short: "Serve topics over HTTP: Server-Sent Events, publishing, and a page",
		Long: `Serves only these topics, until Ctrl-C:

  GET  /                          a page: rates, lag, a live tail, groups, dead letters
  GET  /topics/TOPIC/events       messages as Server-Sent Events; resumes by Last-Event-ID
  GET  /topics/TOPIC/messages     the same by long polling: ?after=CURSOR&wait=30s
  POST /topics/TOPIC/messages     publishes the body, once for each Idempotency-Key
  GET  /healthz /readyz /metrics

serve reads each topic once, however many clients there are. The file of --tokens has a line for
each token: a name, the token or sha256: and its hash, and scopes such as
read:orders,invoices publish:orders or admin:*. Only its owner may be able to read it (chmod 600).
Without tokens, --listen must be an address that only this machine can reach. More is in
docs/guide/serve.md.`,
		Example: `  mqnotify serve orders invoices
  curl -N http://127.0.0.1:8080/topics/orders/events
  mqnotify serve orders --listen :8443 --tokens tokens --tls-cert cert.pem --tls-key key.pem`,
		Args: someNames("TOPIC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Topics = args
			return a.serve(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8080", "the `address` to listen on; port 0 is any free port")
	flags.StringVar(&o.tokens, "tokens", "", "a `file` of tokens; required if other machines can reach the address")
	flags.StringVar(&o.cert, "tls-cert", "", "a `file` with the certificate, for HTTPS")
	flags.StringVar(&o.key, "tls-key", "", "a `file` with the certificate's key")
	flags.StringSliceVar(&o.Origins, "cors", nil, "`origins` whose pages may use the server, separated by commas; default none")
	flags.Int64Var(&o.MaxBody, "max-body", 1<<20, "the largest message that can be published, in `bytes`")
	flags.IntVar(&o.MaxConnections, "max-connections", 10_000, "the limit of simultaneous requests, including streams; further ones wait for 2s,\nthen get 503")
	flags.IntVar(&o.MaxPerClient, "max-per-client", 0, "the limit of simultaneous requests of one address; default half of --max-connections;\nthis machine has no limit")
	flags.IntVar(&o.DatabaseRequests, "max-database-requests", 16, "the limit of simultaneous requests that use the database, with one connection each;\nfurther ones wait, then get 503")
	flags.Int64Var(&o.MaxMemory, "max-memory", 64<<20, "the limit of the `bytes` of messages that requests hold in memory; above it slow\nclients are disconnected")
	flags.IntVar(&o.Buffer, "buffer", 8192, "how many `messages` a client may be behind before it is disconnected")
	flags.DurationVar(&o.Heartbeat, "heartbeat", 0, "how often an idle stream sends a comment; default 15s")
	completeFiles(cmd, "tokens", "tls-cert", "tls-key")
	return cmd
}

// memoryLimit is the default of GOMEMLIMIT: above it, Go collects the garbage of large messages sooner. It limits no message.
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
		return usagef("--listen %s: %w: give a file of --tokens, or listen on 127.0.0.1", o.listen, serve.ErrNoTokens)
	}
	var secure *tls.Config
	if o.cert != "" {
		pair, err := keyPair(o.cert, o.key)
		if err != nil {
			return fmt.Errorf("read the certificate: %w", err)
		}
		secure = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	config, err := a.databaseConfig()
	if err != nil {
		return err
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

// keyPair reads a certificate and its key. It refuses a key file that other users can read.
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

// servable checks that the topics can be served, and returns the tables' names, each once, in the server's letter case.
func servable(ctx context.Context, db *notify.DB, topics []string) (names []string, err error) {
	for _, topic := range topics {
		t, err := table.Describe(ctx, db.Pool(), db.Name(), topic)
		if err != nil {
			return nil, err
		}
		if t.IsView {
			return nil, fmt.Errorf("%s is a view: name the table behind it: %w", t, table.ErrView)
		}
		if key, err := t.KeyColumn(""); err != nil || !key.AutoIncrement {
			return nil, fmt.Errorf("serve reads a table by its AUTO_INCREMENT key, and %s has none: `mqnotify capture install %s` makes messages of the table's changes in a topic",
				t, t.Name)
		}
		// Fail at the start if the account lacks a privilege: later the error would only be logged, again and again.
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
