package bridge

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mqnotify/mqnotify/internal/redact"
	"github.com/mqnotify/mqnotify/notify"
)

// schemes are the destinations by their URL's scheme.
var schemes = map[string]func(p *params) (*Destination, error){
	"stdout": parseStdout,
	"file":   parseFile,
	"exec":   parseExec,
	"nats":   parseNATS,
	"tls":    parseNATS,
	"redis":  parseRedis,
	"rediss": parseRedis,
	"amqp":   parseAMQP,
	"amqps":  parseAMQP,
	"mqtt":   parseMQTT,
	"mqtts":  parseMQTT,
	"kafka":  parseKafka,
	"http":   parseWebhook,
	"https":  parseWebhook,
}

// Parse makes a Destination of a URL for a topic: "stdout", "file:///path", "exec:program", or one with the scheme nats, redis, amqp,
// mqtt, kafka or https. docs/guide/bridge.md lists the parameters of each. It does not connect. Its error is notify.ErrOptions and shows no credential.
func Parse(text, topic string) (*Destination, error) {
	p, err := newParams(text, topic)
	if err != nil {
		return nil, err
	}
	parse, known := schemes[p.url.Scheme]
	if !known {
		return nil, p.wrongf("unknown scheme; there are %s; a file is file:///path", strings.Join(names(schemes), ", "))
	}
	d, err := parse(p)
	if err != nil {
		return nil, err
	}
	if err := p.done(); err != nil {
		return nil, err
	}
	if d.Name == "" {
		d.Name = p.shown
	}
	open := d.Open
	d.Open = func(ctx context.Context) (Sink, error) {
		sink, err := open(ctx)
		return sink, p.openError(err)
	}
	return d, nil
}

func names[V any](m map[string]V) []string {
	var all []string
	for name := range m {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// params are a URL's parts. What asks for a wrong value notes it, done returns it.
type params struct {
	url   *url.URL
	topic string
	shown string
	query url.Values
	used  map[string]bool
	err   error
}

func newParams(text, topic string) (*params, error) {
	p := &params{topic: topic, shown: redact.URL(text), used: map[string]bool{}}
	u, err := url.Parse(text)
	if err != nil { // its text has the URL in it
		return nil, p.wrongf("it can't be read: write scheme://user:password@host:port/..., with %%XX for special characters")
	}
	if text == "stdout" || text == "-" {
		u.Scheme = "stdout"
	}
	p.url = u
	if p.query, err = url.ParseQuery(u.RawQuery); err != nil {
		return nil, p.wrongf("its parameters can't be read")
	}
	return p, nil
}

func (p *params) wrongf(format string, args ...any) error {
	return fmt.Errorf("bridge: %w: URL %s: %s", notify.ErrOptions, p.shown, fmt.Sprintf(format, args...))
}

// note keeps the first thing that is wrong.
func (p *params) note(format string, args ...any) {
	if p.err == nil {
		p.err = p.wrongf(format, args...)
	}
}

func (p *params) text(name, otherwise string) string {
	p.used[name] = true
	if !p.query.Has(name) {
		return otherwise
	}
	return p.query.Get(name)
}

// flag is true or false, which it is without being named.
func (p *params) flag(name string) bool {
	text := p.text(name, "false")
	if text != "true" && text != "false" {
		p.note("%s=%q: true or false", name, text)
	}
	return text == "true"
}

// number is a whole number from least on.
func (p *params) number(name string, least, otherwise int64) int64 {
	text := p.text(name, "")
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least {
		p.note("%s=%q: a number from %d on", name, text, least)
	}
	return n
}

func (p *params) duration(name string, otherwise time.Duration) time.Duration {
	text := p.text(name, "")
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		p.note("%s=%q: a time such as 90s or 10m", name, text)
	}
	return d
}

// size is a number of bytes: 1000000, 10MB, 64KiB.
func (p *params) size(name string, otherwise int64) int64 {
	text := p.text(name, "")
	if text == "" {
		return otherwise
	}
	number, unit := text, int64(1)
	for _, u := range []struct {
		name string
		size int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}} {
		if cut, found := strings.CutSuffix(text, u.name); found {
			number, unit = cut, u.size
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > (1<<62)/unit {
		p.note("%s=%q: a size such as 100MB or 64KiB", name, text)
		return 0
	}
	return n * unit
}

// hostPort is where to connect to.
func (p *params) hostPort(port string) string {
	if p.url.Hostname() == "" {
		p.note("it names no host")
	}
	if p.url.Port() != "" {
		return p.url.Host
	}
	return p.url.Host + ":" + port
}

// noPath refuses a path, which would mean nothing.
func (p *params) noPath() {
	if strings.Trim(p.url.Path, "/") != "" {
		p.note("a path means nothing here")
	}
}

// done returns what is wrong with the URL: a value, or a parameter that the scheme does not have.
func (p *params) done() error {
	for _, name := range names(p.query) {
		if !p.used[name] {
			p.note("unknown parameter %q; there are %s", name, strings.Join(names(p.used), ", "))
		}
	}
	return p.err
}
