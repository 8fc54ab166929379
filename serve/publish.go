package serve

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jmoiron/sqlx"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqnotify/mqnotify/internal/header"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
	"github.com/mqnotify/mqnotify/tracing"
)

// headerPrefix is the prefix of request headers that become headers of the message.
const headerPrefix = "Mqnotify-Header-"

// maxKey limits an Idempotency-Key, in bytes.
const maxKey = 255

// publish handles POST /topics/{topic}/messages: the body is the payload.
func (s *Server) publish(w http.ResponseWriter, r *http.Request, t *topic) {
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := s.tracer.Start(ctx, "publish "+t.name, trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(attribute.String("messaging.destination.name", t.name)))
	defer span.End()
	release, ok := s.holdBody(w, r)
	if !ok {
		return
	}
	defer release()
	payload, err := readBody(http.MaxBytesReader(w, r.Body, s.options.MaxBody), r.ContentLength)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		fail(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the message is too large: at most %d bytes", tooLarge.Limit))
		return
	case err != nil:
		fail(w, http.StatusBadRequest, "the body is incomplete")
		return
	}
	key := r.Header.Get("Idempotency-Key")
	if len(key) > maxKey || !utf8.ValidString(key) || strings.HasSuffix(key, " ") {
		fail(w, http.StatusBadRequest, fmt.Sprintf("Idempotency-Key: send at most %d bytes of UTF-8, without a space at the end", maxKey))
		return
	}
	headers, err := messageHeaders(r.Header)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	message := producer.Message{Payload: payload, Headers: headers}
	digest := digestOf(message) // without the trace, because a retry has another span
	tracing.Inject(ctx, &message)
	leave, ok := s.useDatabase(w, r)
	if !ok {
		span.SetStatus(codes.Error, "not published")
		return
	}
	id, replayed, err := s.store(ctx, t, message, key, digest)
	leave()
	if err != nil {
		span.SetStatus(codes.Error, "not published")
		s.publishFailed(w, r, t, err)
		return
	}
	if !replayed {
		t.metrics.published.Inc()
	}
	status := http.StatusCreated
	if replayed {
		status = http.StatusOK
		w.Header().Set("Idempotency-Replayed", "true")
	}
	reply(w, status, map[string]any{"id": id})
}

// holdBody waits for memory for a request's body and the driver's copy of it. If there is none in time, it answers and returns false.
// The caller calls release.
func (s *Server) holdBody(w http.ResponseWriter, r *http.Request) (release func(), ok bool) {
	size := r.ContentLength
	if size < 0 {
		size = s.options.MaxBody
	}
	if size > s.options.MaxBody {
		fail(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the message is too large: at most %d bytes", s.options.MaxBody))
		return nil, false
	}
	n := s.options.memory.bounded(2 * size)
	ctx, cancel := context.WithTimeout(r.Context(), s.options.crowded)
	defer cancel()
	if s.options.memory.acquire(ctx, n, nil, nil) != nil {
		s.busy(w, "too many messages are being published: try again")
		return nil, false
	}
	return func() { s.options.memory.Release(n) }, true
}

// readBody reads a body of size bytes, or of unknown size (-1).
func readBody(from io.Reader, size int64) ([]byte, error) {
	if size < 0 {
		return io.ReadAll(from)
	}
	body := make([]byte, size)
	_, err := io.ReadFull(from, body)
	return body, err
}

// messageHeaders returns the message's headers from the request's, or an error that names a header that is not allowed.
func messageHeaders(from http.Header) (headers map[string]string, err error) {
	for name, values := range from {
		own, ok := strings.CutPrefix(name, headerPrefix)
		if !ok || own == "" {
			continue
		}
		value := strings.Join(values, ", ")
		switch {
		case header.Reserved(own):
			return nil, fmt.Errorf("%s: names that begin with %s are reserved: choose another", name, header.Prefix)
		case !utf8.ValidString(value):
			return nil, fmt.Errorf("%s: the value is not UTF-8: move it into the body", name)
		}
		if headers == nil {
			headers = make(map[string]string)
		}
		headers[strings.ToLower(own)] = value
	}
	return headers, nil
}

// digestOf returns a hash that distinguishes messages with the same key.
func digestOf(m producer.Message) [sha256.Size]byte {
	hash := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		_, _ = fmt.Fprintf(hash, "%q:%q\n", name, m.Headers[name])
	}
	_, _ = hash.Write([]byte{'\n'})
	_, _ = hash.Write(m.Payload)
	return [sha256.Size]byte(hash.Sum(nil))
}

// errKeyUsed means that another message was published under the key.
var errKeyUsed = errors.New("another message was published with this Idempotency-Key")

// store publishes the message, once for each key.
func (s *Server) store(ctx context.Context, t *topic, m producer.Message, key string, digest [sha256.Size]byte) (id uint64, replayed bool, err error) {
	if key == "" {
		ids, err := t.producer.Publish(ctx, m)
		if err != nil {
			return 0, false, err
		}
		return ids[0], false, nil
	}
	for try := 0; ; try++ {
		var byKey bool // the key's row is the duplicate, not the message's
		err = t.producer.Transact(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
			ids, err := t.producer.PublishTx(ctx, tx, m)
			if err != nil {
				return err
			}
			id = ids[0]
			_, err = tx.ExecContext(ctx, "INSERT INTO "+schema.IdempotencyTable+" (topic, name, message_id, digest) VALUES (?, ?, ?, ?)",
				t.name, key, id, digest[:])
			byKey = server.Is(err, server.ErrDuplicate)
			return err
		})
		switch {
		case errors.Is(err, notify.ErrUnknown) && try == 0 && ctx.Err() == nil:
			continue // if the first try was stored, the key is a duplicate now
		case !server.Is(err, server.ErrDuplicate):
			return id, false, err
		}
		earlier, unread := s.published(ctx, t, key, digest)
		switch {
		case !errors.Is(unread, sql.ErrNoRows):
			return earlier, true, unread
		case !byKey, try == 2: // a unique key of the topic's own refuses it
			return 0, false, err
		}
		// Try again, because forget has just deleted the key.
	}
}

// published returns the id of the message that was published with the key. The error is errKeyUsed if it was another message.
func (s *Server) published(ctx context.Context, t *topic, key string, digest [sha256.Size]byte) (uint64, error) {
	var row struct {
		ID     uint64 `db:"message_id"`
		Digest []byte
	}
	err := s.db.Pool().GetContext(ctx, &row, "SELECT message_id, digest FROM "+schema.IdempotencyTable+" WHERE topic = ? AND name = ?", t.name, key)
	if err == nil && [sha256.Size]byte(row.Digest) != digest {
		err = errKeyUsed
	}
	return row.ID, err
}

func (s *Server) publishFailed(w http.ResponseWriter, r *http.Request, t *topic, err error) {
	status, text := http.StatusServiceUnavailable, "the database did not store the message: try again"
	switch {
	case errors.Is(err, errKeyUsed):
		status, text = http.StatusUnprocessableEntity, err.Error()
	case errors.As(err, new(*notify.TooLargeError)):
		status, text = http.StatusRequestEntityTooLarge, "the message is too large for the database's max_allowed_packet"
	case errors.Is(err, notify.ErrNotTopic), errors.Is(err, notify.ErrNoTable), errors.Is(err, producer.ErrNoID):
		status, text = http.StatusConflict, "this table can't store messages"
	case server.ReadOnly(err):
		text = "the database takes no writes now: try again"
	case errors.Is(err, notify.ErrDenied), server.NoPrivilege(err):
		status, text = http.StatusForbidden, "the server's account may not write to this topic, or not store Idempotency-Keys"
	case errors.Is(err, notify.ErrUnknown):
		status, text = http.StatusBadGateway, "it is unknown whether the message is stored: send an Idempotency-Key, so that a retry is safe"
	case server.Is(err, server.ErrNoSuchTable):
		status, text = http.StatusConflict, "the database has no table for Idempotency-Keys: mqnotify init makes it"
	case server.Refused(err):
		status, text = http.StatusConflict, "this table refuses the message"
	case server.Permanent(err):
		status, text = http.StatusInternalServerError, "the database refuses to store messages: the log of mqnotify serve says why"
	}
	s.log.WarnContext(r.Context(), "not published", "topic", t.name, "error", err)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	fail(w, status, text)
}

// forgetKeys deletes old keys every 10 minutes until ctx ends.
func (s *Server) forgetKeys(ctx context.Context) {
	tick := time.NewTicker(10 * time.Minute)
	defer tick.Stop()
	for {
		if err := s.forget(ctx); err != nil && ctx.Err() == nil && !server.Is(err, server.ErrNoSuchTable) && !server.NoPrivilege(err) {
			s.log.WarnContext(ctx, "old Idempotency-Keys were not deleted; trying again later", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// forget deletes old keys in small batches, so that it blocks no publish for long.
func (s *Server) forget(ctx context.Context) error {
	age := int64(s.options.KeyAge.Seconds())
	for {
		result, err := s.db.Pool().ExecContext(ctx, "DELETE FROM "+schema.IdempotencyTable+
			" WHERE created_at < "+schema.SecondsAgo+" ORDER BY created_at LIMIT 500", age, age)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return err
		}
	}
}
