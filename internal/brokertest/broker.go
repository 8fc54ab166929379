//go:build unix

package brokertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mqnotify/mqnotify/internal/child"
)

// envBrokers names the folder with the brokers' programs.
const envBrokers = "MQNOTIFY_TEST_BROKERS"

// The account of every broker.
const (
	User     = "bridge"
	Password = "s3cret-w0rd"
)

// Broker is a broker of one test. Safe for concurrent use.
type Broker struct {
	tb     testing.TB
	kind   kind
	folder string
	port   int
	secure *Certificate // nil for no TLS

	securePort int // RabbitMQ's port for TLS next to the other one; 0 for none

	mu      sync.Mutex
	process *process // nil when stopped
	beside  *process // RabbitMQ's epmd, which runs next to it
}

// kind is how a broker is run.
type kind struct {
	program, scheme, path string
	secure                string // its scheme with TLS
	// prepare writes the configuration.
	prepare func(b *Broker, options []string) (args, environ []string, err error)
	// ready returns nil when the broker answers.
	ready func(ctx context.Context, b *Broker) error
	slow  bool // its start keeps a processor busy for seconds
}

// slowStart allows one slow broker to start at a time.
var slowStart sync.Mutex

// WithTLS starts a broker that accepts only TLS. begin is NATS, Redis or Mosquitto.
func WithTLS(tb testing.TB, c Certificate, begin func(tb testing.TB) *Broker) *Broker {
	tb.Helper()
	return begin(secured{tb, &c})
}

// secured passes the certificate to start.
type secured struct {
	testing.TB
	certificate *Certificate
}

func start(tb testing.TB, k kind, options []string) *Broker {
	tb.Helper()
	if testing.Short() && os.Getenv(envBrokers) == "" {
		tb.Skip("needs a broker, which the short form does without unless " + envBrokers + " names the folder that has them")
	}
	b := &Broker{tb: tb, kind: k}
	if s, ok := tb.(secured); ok {
		b.secure, b.kind.scheme = s.certificate, k.secure
	}
	var err error
	// Not tb.TempDir, because a process of a killed broker may still write for a moment, which would fail the test.
	if b.folder, err = os.MkdirTemp("", "mqnotify-broker-"); err != nil { //nolint:usetesting // see above
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(b.folder) })
	tb.Cleanup(func() { b.end(syscall.SIGKILL) })
	if b.port, err = child.FreePort(); err != nil {
		tb.Fatalf("brokertest: %v", err)
	}
	if err := b.run(options); err != nil {
		tb.Fatal(err)
	}
	return b
}

// run starts the program and returns when the broker answers.
func (b *Broker) run(options []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	binary, err := program(b.kind.program)
	if err != nil {
		return err
	}
	args, environ, err := b.kind.prepare(b, options)
	if err != nil {
		return fmt.Errorf("brokertest: prepare %s: %w", b.kind.program, err)
	}
	if b.kind.slow {
		slowStart.Lock()
		defer slowStart.Unlock()
	}
	if b.process, err = startProcess(binary, args, environ, b.folder, b.path("log")); err != nil {
		return fmt.Errorf("brokertest: start %s: %w", b.kind.program, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		// A broker may accept a connection before it can answer; ask again over another one.
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		err = b.kind.ready(attempt, b)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-b.process.Done:
			return fmt.Errorf("brokertest: %s ended while it started: %w\n%s", b.kind.program, b.process.Err, b.log())
		case <-ctx.Done():
			return fmt.Errorf("brokertest: %s does not answer within %v: %w\n%s", b.kind.program, startPatience, err, b.log())
		case <-tick.C:
		}
	}
}

func (b *Broker) path(name string) string { return filepath.Join(b.folder, name) }

// log returns the end of the broker's output.
func (b *Broker) log() []byte {
	text, err := os.ReadFile(b.path("log"))
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(text, []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-30):], []byte("\n"))
}

// Addr returns the host and port.
func (b *Broker) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// URL returns the address to connect to, with credentials and these parameters.
func (b *Broker) URL(query string) string { return b.url(b.kind.scheme, b.port, query) }

// SecureURL is URL for the port with TLS of a RabbitMQ that has a certificate.
func (b *Broker) SecureURL(query string) string { return b.url(b.kind.secure, b.securePort, query) }

func (b *Broker) url(scheme string, port int, query string) string {
	u := url.URL{
		Scheme: scheme, User: url.UserPassword(User, Password), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		Path: b.kind.path, RawQuery: query,
	}
	return u.String()
}

// Stop ends the broker in an orderly way. It returns when the broker is
// gone, and does nothing if it does not run.
func (b *Broker) Stop() { b.end(syscall.SIGTERM) }

// Kill ends the broker with SIGKILL, as a crash would. It returns when the broker is gone, and does nothing if it does not run.
func (b *Broker) Kill() { b.end(syscall.SIGKILL) }

// Restart starts the broker again, with the same data and port. It stops a running broker
// first.
func (b *Broker) Restart() {
	b.Stop()
	if err := b.run(nil); err != nil {
		b.tb.Error(err)
	}
}

// Freeze stops the broker's process (SIGSTOP) and returns when it has stopped. The broker neither
// answers nor reads until thaw is called.
func (b *Broker) Freeze() (thaw func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.process == nil {
		return func() {}
	}
	group := -b.process.Pid
	tell := func(signal syscall.Signal) {
		if err := syscall.Kill(group, signal); err != nil {
			b.tb.Error(err)
		}
	}
	tell(syscall.SIGSTOP)
	b.process.AwaitStopped()
	return func() { tell(syscall.SIGCONT) }
}

func (b *Broker) end(signal syscall.Signal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range []**process{&b.process, &b.beside} {
		if *p != nil {
			if err := (*p).end(signal); err != nil {
				b.tb.Error(err)
			}
			*p = nil
		}
	}
}

// program returns the path of a broker's program.
func program(name string) (string, error) {
	folder := os.Getenv(envBrokers)
	if folder == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		folder = filepath.Join(cache, "mqnotify", "brokers", "bin")
	}
	path := filepath.Join(folder, name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("brokertest: no %s in %s: run scripts/brokers, or name the folder that has it in %s", name, folder, envBrokers)
	}
	return path, nil
}

// accepts returns nil if the broker accepts connections.
func accepts(ctx context.Context, b *Broker) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", b.Addr())
	if err != nil {
		return err
	}
	return conn.Close()
}
