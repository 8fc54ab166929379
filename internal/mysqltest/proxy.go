package mysqltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/mqnotify/mqnotify/internal/child"
)

func init() { toxics.Register("freeze", new(freezeToxic)) }

// freezeToxic forwards nothing until it is removed, not even the end of a connection. Then the data that was sent in the
// meantime arrives. (Toxiproxy's own timeout toxic drops data and forwards the end.)
type freezeToxic struct{}

func (*freezeToxic) Pipe(stub *toxics.ToxicStub) { <-stub.Interrupt }

// directions are the two ways through a proxy: to the server and back.
var directions = []string{"upstream", "downstream"}

// Proxy is a proxy in front of a server, with which a test breaks the network. Its methods are safe for concurrent use.
type Proxy struct {
	tb    testing.TB
	proxy *toxiproxy.Proxy

	mu     sync.Mutex
	toxics map[string]bool // by name
}

// Proxy starts a proxy to the server, which ends with the test. It skips the test if the server is reached over a Unix socket.
func (s *Server) Proxy(tb testing.TB) *Proxy {
	tb.Helper()
	cfg := s.config()
	if cfg.Net != "tcp" {
		tb.Skipf("a proxy needs TCP; %s names %s", envDSN, cfg.Net)
	}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &Proxy{tb: tb, toxics: map[string]bool{}}
	for attempt := 1; ; attempt++ {
		port, err := child.FreePort()
		if err != nil {
			tb.Fatalf("mysqltest: %v", err)
		}
		p.proxy = toxiproxy.NewProxy(server, s.name, loopback(port), cfg.Addr)
		if err = p.proxy.Start(); err == nil {
			break
		}
		if attempt == portAttempts || child.PortIsFree(port) {
			tb.Fatalf("mysqltest: start the proxy: %v", err)
		}
	}
	tb.Cleanup(p.Down)
	return p
}

// Addr returns the host and port to connect to.
func (p *Proxy) Addr() string { return p.proxy.Listen }

// Config returns a copy of cfg with the proxy's address.
func (p *Proxy) Config(cfg *mysql.Config) *mysql.Config {
	through := cfg.Clone()
	through.Addr = p.Addr()
	return through
}

// Forgetful returns a copy of cfg whose connections go through the proxy, and past it once it is frozen, as when a router has lost
// its state: existing connections are silent, and new ones work.
func (p *Proxy) Forgetful(cfg *mysql.Config) *mysql.Config {
	through := cfg.Clone()
	through.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		p.mu.Lock()
		if !p.toxics["freeze"] {
			addr = p.Addr()
		}
		p.mu.Unlock()
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	return through
}

// Down cuts all connections and refuses new ones. A freeze and a latency end with it.
func (p *Proxy) Down() {
	p.proxy.Stop()
	// These are removed after the stop: before it, the data that they hold back would still arrive.
	p.remove("freeze")
	p.remove("latency")
}

// Up accepts connections again, at the same address.
func (p *Proxy) Up() {
	err := p.proxy.Start()
	// A child process that was forked before Down keeps the closed listener open until its exec.
	for begun := time.Now(); errors.Is(err, syscall.EADDRINUSE) && time.Since(begun) < patience; err = p.proxy.Start() {
		<-time.After(time.Millisecond)
	}
	if err != nil && !errors.Is(err, toxiproxy.ErrProxyAlreadyStarted) {
		p.tb.Errorf("mysqltest: start the proxy: %v", err)
	}
}

// Freeze stops all forwarding in both directions, of data and of the ends of connections, as when a cable is pulled. New
// connections are accepted but get no answer.
func (p *Proxy) Freeze() { p.add("freeze", "{}") }

// Thaw ends [Proxy.Freeze]. The data that was sent in the meantime arrives.
func (p *Proxy) Thaw() { p.remove("freeze") }

// Latency delays all data by d in each direction, in whole milliseconds. 0 ends the delay.
func (p *Proxy) Latency(d time.Duration) {
	p.remove("latency")
	if d > 0 {
		p.add("latency", fmt.Sprintf(`{"latency": %d}`, d.Milliseconds()))
	}
}

func (p *Proxy) add(kind, attributes string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.toxics[kind] {
		return
	}
	p.toxics[kind] = true
	for _, direction := range directions {
		toxic := fmt.Sprintf(`{"type": %q, "name": %q, "stream": %q, "attributes": %s}`,
			kind, kind+"_"+direction, direction, attributes)
		if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			p.tb.Errorf("mysqltest: add %s to the proxy: %v", kind, err)
		}
	}
}

func (p *Proxy) remove(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.toxics[kind] {
		return
	}
	delete(p.toxics, kind)
	for _, direction := range directions {
		if err := p.proxy.Toxics.RemoveToxic(context.Background(), kind+"_"+direction); err != nil {
			p.tb.Errorf("mysqltest: take %s off the proxy: %v", kind, err)
		}
	}
}
