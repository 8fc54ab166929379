package bridge

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/redact"
	"github.com/mqnotify/mqnotify/notify"
)

// webhookSink posts each message as a CloudEvent 1.0 in HTTP's binary mode: the body is the payload, and ce-id is the MessageID. With
// secrets, it signs the message by Standard Webhooks: webhook-signature has an HMAC-SHA256 over "id.timestamp.body" for each secret.
//
// The answer decides:
//
//   - 2xx confirms the message.
//   - 401, 403, 410, and a redirect to another host or without the body end the bridge.
//   - 404, 408, 425, 429, 5xx and no answer lead to a retry, not before Retry-After.
//   - Any other answer refuses the message.
type webhookSink struct {
	*webhook
	client *http.Client
	// Close ends life, and with it a running request.
	life context.Context //nolint:containedctx // only Close ends it
	end  context.CancelCauseFunc
}

// webhook is a destination.
type webhook struct {
	url, name, source, kind string
	keys                    [][]byte // empty for no signature
	timeout                 time.Duration
	tls                     *tls.Config
	secrets                 *strings.Replacer // replaces the URL's parts in a text
}

// answerBytes is how much of an answer is read. The beginning is for the error; the rest is read so that the connection can be reused.
const answerBytes = 64 << 10

func parseWebhook(p *params) *Destination {
	w := &webhook{name: p.shown, source: p.text("ce-source", "/mqnotify/"+url.PathEscape(p.topic)), kind: p.text("ce-type", "mqnotify.message")}
	if _, err := url.Parse(w.source); err != nil || w.source == "" {
		p.note("ce-source=: a URI reference, such as /shop/orders")
	}
	if w.kind == "" {
		p.note("ce-type=: name it")
	}
	if w.timeout = p.duration("timeout", 15*time.Second); w.timeout == 0 {
		p.note("timeout=: more than 0")
	}
	p.used["secret"] = true
	texts := p.query["secret"]
	for _, text := range texts {
		key, err := signingKey(text)
		if err != nil {
			p.note("secret=: %v", err)
		}
		w.keys = append(w.keys, key)
	}
	w.tls = p.tls(p.url.Scheme == "https", "write https://")
	// The remaining parameters are for the receiver.
	query := p.query
	for _, own := range []string{"ce-source", "ce-type", "timeout", "secret", "ca"} {
		query.Del(own)
	}
	for name := range query {
		p.used[name] = true
	}
	p.hostPort("")
	u := *p.url
	u.RawQuery = query.Encode()
	w.url = u.String()
	w.secrets = urlSecrets(&u, texts...)
	return &Destination{InFlight: 1, Timeout: w.timeout, Open: w.open}
}

// signingKey decodes a secret of Standard Webhooks: whsec_ and base64, standard or URL-safe, with or without padding. A space was a +
// that was not escaped in the URL. The error does not contain the secret.
func signingKey(text string) ([]byte, error) {
	const least = 16 // bytes
	digits := strings.NewReplacer(" ", "+", "-", "+", "_", "/").Replace(strings.TrimRight(strings.TrimPrefix(text, "whsec_"), "="))
	key, err := base64.RawStdEncoding.DecodeString(digits)
	var at base64.CorruptInputError
	switch {
	case strings.HasPrefix(text, "whsk_"), strings.HasPrefix(text, "whpk_"):
		return nil, errors.New("it is an Ed25519 key; give a whsec_ secret, which signs with HMAC-SHA256")
	case err != nil && len(digits)%4 == 1:
		return nil, fmt.Errorf("it is not base64: a character is missing, or there is one too many (%d after whsec_)", len(digits))
	case errors.As(err, &at):
		return nil, fmt.Errorf("character %d after whsec_ is not base64", int(at)+1)
	case len(key) < least:
		return nil, fmt.Errorf("it has %d bytes; a secret has at least %d: make one with `echo whsec_$(openssl rand -base64 24)`", len(key), least)
	}
	return key, nil
}

// urlSecrets returns a replacer that hides the parts of a URL, which a receiver may repeat in its answer (such as an unknown path). It
// leaves short parts in, unless they are a password or the whole path, because without every "in" a text would be unreadable.
func urlSecrets(u *url.URL, others ...string) *strings.Replacer {
	const short = 4
	parts := others
	add := func(least int, values ...string) {
		for _, value := range values {
			if len(value) >= least {
				parts = append(parts, value, url.PathEscape(value), url.QueryEscape(value))
			}
		}
	}
	if password, _ := u.User.Password(); password != "" {
		add(1, password)
	}
	add(short, u.User.Username())
	add(2, u.Path, u.EscapedPath())
	add(1, u.RawQuery)
	add(short, strings.Split(u.Path, "/")...)
	for name, values := range u.Query() {
		if redact.Secret(name) {
			add(1, values...)
		}
		add(short, values...)
	}
	slices.SortFunc(parts, func(a, b string) int { return len(b) - len(a) }) // longer parts first, because they contain shorter ones
	var pairs []string
	for _, part := range parts {
		if part != "" {
			pairs = append(pairs, part, "***")
		}
	}
	return strings.NewReplacer(pairs...)
}

var (
	errOtherHost = errors.New("it redirects to another host")
	errDropsBody = errors.New("it redirects with 301, 302 or 303, after which a client sends no body: give the new address, or make the receiver answer 308")
)

func (w *webhook) open(context.Context) (Sink, error) {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("http.DefaultTransport is not the standard one")
	}
	transport = transport.Clone()
	transport.MaxResponseHeaderBytes = answerBytes
	transport.TLSClientConfig = w.tls.Clone()
	s := &webhookSink{webhook: w, client: &http.Client{
		Transport: transport, Timeout: w.timeout,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			switch {
			// The body, its signature and the secrets in the path are only for the host in the URL.
			case req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme:
				return errOtherHost
			case req.Method != http.MethodPost: // after a 301 to 303
				return errDropsBody
			case len(via) > 5:
				return errors.New("it redirects too often")
			}
			return nil
		},
	}}
	s.life, s.end = context.WithCancelCause(context.Background())
	return s, nil
}

func (s *webhookSink) Send(ctx context.Context, messages []consumer.Message) (int, error) {
	for i, m := range messages {
		if s.life.Err() != nil {
			return i, notify.ErrClosed
		}
		if err := s.post(ctx, m); err != nil {
			if s.life.Err() != nil {
				err = notify.ErrClosed
			}
			return i, err
		}
	}
	if s.life.Err() != nil && len(messages) == 0 {
		return 0, notify.ErrClosed
	}
	return len(messages), nil
}

func (s *webhookSink) post(ctx context.Context, m consumer.Message) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(notify.ErrClosed) })()
	e, err := s.event(m)
	if err != nil {
		return poison(m, "it can't be a CloudEvent: %w", err)
	}
	request, err := cehttp.NewHTTPRequestFromEvent(ctx, s.url, e)
	if err != nil {
		return poison(m, "it can't be a CloudEvent: %w", s.hide(err))
	}
	request.Header.Set("User-Agent", "mqnotify")
	// Tracers read these headers, not the event's own, ce-traceparent and ce-tracestate.
	for _, name := range []string{"traceparent", "tracestate"} {
		if value := m.Headers[name]; value != "" && token(name, value) {
			request.Header.Set(name, value)
		}
	}
	if len(s.keys) > 0 {
		sign(request.Header, s.keys, e.ID(), time.Now(), m.Payload)
	}
	response, err := s.client.Do(request)
	if err != nil {
		if errors.Is(err, errOtherHost) || errors.Is(err, errDropsBody) {
			return permanent(s.hide(err))
		}
		return s.hide(err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, _ := io.ReadAll(io.LimitReader(response.Body, answerBytes)) // the status suffices
	return s.judge(m, response, answer)
}

// hide removes the URL from the client's error, because its path may contain secrets. The client's error may also quote the receiver's
// answer.
func (s *webhookSink) hide(err error) error {
	for failed := (*url.Error)(nil); errors.As(err, &failed); {
		err = failed.Err
	}
	err = tlsError(err)
	return &hiddenError{"post to " + s.name + ": " + s.shown(err.Error(), 500), err}
}

// shown returns the beginning of a text from the receiver, without the URL's secrets.
func (w *webhook) shown(text string, most int) string {
	text = w.secrets.Replace(strings.ToValidUTF8(text, ""))
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// hiddenError replaces the text of an error.
type hiddenError struct {
	text string
	err  error
}

func (e *hiddenError) Error() string { return e.text }
func (e *hiddenError) Unwrap() error { return e.err }

// event converts a message to a CloudEvent.
func (s *webhookSink) event(m consumer.Message) (event.Event, error) {
	e := event.New()
	e.SetID(encoded(MessageID(m)))
	e.SetSource(s.source)
	e.SetType(s.kind)
	e.SetSubject(strconv.FormatUint(m.ID, 10))
	if !m.CreatedAt.IsZero() {
		e.SetTime(m.CreatedAt)
	}
	kind := "application/octet-stream"
	if json.Valid(m.Payload) {
		kind = "application/json"
	}
	if own := m.Headers["content-type"]; mediaType(own) {
		kind = own
	}
	for _, f := range fields(m, extension) {
		switch f.name {
		case fieldHeaders:
			e.SetExtension("mqnotifyheaders", encoded(f.value))
		case fieldTopic:
			e.SetExtension("mqnotifytopic", encoded(f.value))
		case fieldID, fieldCreatedAt: // the subject, and the time
		default:
			e.SetExtension(f.name, encoded(f.value))
		}
	}
	e.SetDataContentType(kind)
	e.DataEncoded = m.Payload
	return e, e.Validate()
}

// encoded percent-encodes a header's value by section 3.1.3.2 of CloudEvents' HTTP binding: all characters but visible ASCII, and
// quotation marks and percent signs.
func encoded(value string) string {
	var b strings.Builder
	for _, c := range []byte(value) {
		if c <= ' ' || c >= 0x7f || c == '"' || c == '%' {
			_, _ = fmt.Fprintf(&b, "%%%02X", c) // a strings.Builder never fails
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// mediaType reports whether a message's own content type may be the event's. With the type of a CloudEvent a receiver would read the
// payload as a whole event, in structured or batched mode, and trust its attributes.
func mediaType(value string) bool {
	_, _, err := mime.ParseMediaType(value)
	return err == nil && token("content-type", value) && !strings.Contains(strings.ToLower(value), "application/cloudevents")
}

// extension reports whether a header may be an attribute of a CloudEvent. Names that begin with mqnotify are reserved for the bridge.
func extension(name, value string) bool {
	switch name {
	case "", "id", "source", "type", "specversion", "subject", "time", "datacontenttype", "dataschema", "data":
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(name) <= 20 && !strings.HasPrefix(name, "mqnotify") && token(name, value)
}

// sign adds the headers of Standard Webhooks (standardwebhooks.com). It makes a signature with every key, so that a receiver can change
// its secret at any time while the URL has the old and the new one.
func sign(header http.Header, keys [][]byte, id string, now time.Time, body []byte) {
	timestamp := strconv.FormatInt(now.Unix(), 10)
	var signatures []string
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body) // a hash never fails
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	header.Set("webhook-id", id)
	header.Set("webhook-timestamp", timestamp)
	header.Set("webhook-signature", strings.Join(signatures, " "))
}

// judge returns the error of an answer, nil for 2xx.
func (w *webhook) judge(m consumer.Message, response *http.Response, answer []byte) error {
	status := response.StatusCode
	if status >= 200 && status < 300 {
		return nil
	}
	// Use the standard text of the status, because the receiver's own may be anything, and long.
	err := fmt.Errorf("the receiver answered %s", strings.TrimSpace(strconv.Itoa(status)+" "+http.StatusText(status)))
	if text := strings.TrimSpace(w.shown(string(answer), 200)); text != "" {
		err = fmt.Errorf("%w: %q", err, text)
	}
	switch {
	case status == http.StatusGone, status == http.StatusUnauthorized, status == http.StatusForbidden:
		return permanent(err)
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests,
		status == http.StatusNotFound, status >= 500:
		if after := retryAfter(response, time.Now()); after > 0 {
			return &LaterError{after, err}
		}
		return err
	}
	return &PoisonError{m.ID, err}
}

// maxRetryAfter limits Retry-After.
const maxRetryAfter = time.Hour

// retryAfter returns the wait of the header Retry-After, which has seconds or a date; 0 without it.
func retryAfter(response *http.Response, now time.Time) time.Duration {
	text := response.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil {
		return min(time.Duration(min(max(0, seconds), 1<<20))*time.Second, maxRetryAfter)
	}
	if date, err := http.ParseTime(text); err == nil {
		return min(max(0, date.Sub(now)), maxRetryAfter)
	}
	return 0
}

func (s *webhookSink) Close() error {
	s.end(notify.ErrClosed)
	s.client.CloseIdleConnections()
	return nil
}
