package bridge

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mqnotify/mqnotify/internal/redact"
	"github.com/mqnotify/mqnotify/notify"
)

// schemes are the parsers of destinations by URL scheme. A parser notes what is wrong with the URL, and done returns it.
var schemes = map[string]func(p *params) *Destination{
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

// Parse returns the Destination of a URL for a topic: "stdout", "file:///path", "exec:program", or a URL with the scheme nats, redis,
// amqp, mqtt, kafka or https. docs/guide/bridge.md lists the parameters of each. Parse does not connect. Its error is notify.ErrOptions
// and contains no credential.
func Parse(text, topic string) (*Destination, error) {
	p, err := newParams(text, topic)
	if err != nil {
		return nil, err
	}
	parse, known := schemes[p.url.Scheme]
	if !known {
		return nil, p.wrongf("unknown scheme; write one of %s, such as file:///path", strings.Join(names(schemes), ", "))
	}
	d := parse(p)
	if err := p.done(); err != nil {
		return nil, err
	}
	d.Name = cmp.Or(d.Name, p.shown)
	open := d.Open
	d.Open = func(ctx context.Context) (Sink, error) {
		sink, err := open(ctx)
		return sink, p.openError(err)
	}
	return d, nil
}

func names[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// params has the parts of a URL. Its methods record the first wrong value, which done returns.
type params struct {
	url   *url.URL
	topic string
	shown string
	query url.Values
	used  map[string]bool
	err   error
}

// path returns the URL's path without escapes, also that of file:orders.jsonl or exec:./load, which url.Parse keeps as it is.
func (p *params) path() string {
	if p.url.Opaque == "" {
		return p.url.Path
	}
	path, err := url.PathUnescape(p.url.Opaque)
	if err != nil {
		p.note("write %%25 for a %%")
	}
	return path
}

func newParams(text, topic string) (*params, error) {
	p := &params{topic: topic, shown: redact.URL(text), used: map[string]bool{}}
	u, err := url.Parse(text)
	if err != nil { // don't show err, whose text contains the URL
		return nil, p.wrongf("it can't be read: write scheme://user:password@host:port/..., with %%XX for special characters")
	}
	if strings.Contains(text, "#") { // url.Parse takes the rest for a fragment, such as the # of the MQTT filter shop/#
		return nil, p.wrongf("there is a # in it: write it as %%23")
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

// note records an error, if it is the first.
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

// flag returns a parameter that is true or false; default false.
func (p *params) flag(name string) bool {
	text := p.text(name, "false")
	if text != "true" && text != "false" {
		p.note("%s=%q: write true or false", name, text)
	}
	return text == "true"
}

// number returns an integer of at least least.
func (p *params) number(name string, least, otherwise int64) int64 {
	text := p.text(name, "")
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least {
		p.note("%s=%q: write a number of at least %d", name, text, least)
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
		p.note("%s=%q: write a duration such as 90s or 10m", name, text)
	}
	return d
}

// size returns a number of bytes: 1000000, 10MB, 64KiB.
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
		p.note("%s=%q: write a size such as 100MB or 64KiB", name, text)
		return 0
	}
	return n * unit
}

// hostPort returns the URL's host and port; port is the default.
func (p *params) hostPort(port string) string {
	if p.url.Hostname() == "" {
		p.note("it names no host")
	}
	if p.url.Port() != "" {
		return p.url.Host
	}
	return p.url.Host + ":" + port
}

// noPath refuses a path, for schemes whose URL has none.
func (p *params) noPath() {
	if strings.Trim(p.url.Path, "/") != "" {
		p.note("leave out the path: this scheme has none")
	}
}

// done returns the first wrong value, or else an error if the URL has an unknown parameter.
func (p *params) done() error {
	for _, name := range names(p.query) {
		if !p.used[name] {
			p.note("unknown parameter %q; the known ones are %s", name, strings.Join(names(p.used), ", "))
		}
	}
	return p.err
}
