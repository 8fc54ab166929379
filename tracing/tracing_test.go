package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/producer"
	"github.com/mqnotify/mqnotify/tracing"
)

func traced(tb testing.TB) (context.Context, trace.SpanContext) {
	tb.Helper()
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	return trace.ContextWithSpanContext(context.Background(), span), span
}

// What is injected into a message is in the context that is made of it; without a trace
// a message stays as it is. TestTrace in serve/ shows the whole way.
func TestInjectAndContext(t *testing.T) {
	ctx, span := traced(t)
	own := map[string]string{"kind": "paid"}
	m := producer.Message{Headers: own}
	tracing.Inject(ctx, &m)
	assert.Equal(t, map[string]string{"kind": "paid"}, own, "the caller's map is not changed")
	assert.Equal(t, "00-01000000000000000000000000000000-0200000000000000-01", m.Headers["traceparent"])
	got := trace.SpanContextFromContext(tracing.Context(context.Background(), consumer.Message{Headers: m.Headers}))
	assert.True(t, got.Equal(span.WithRemote(true)))

	forwarded := producer.Message{Headers: map[string]string{"traceparent": "of another trace", "tracestate": "a=1"}}
	tracing.Inject(ctx, &forwarded)
	assert.NotContains(t, forwarded.Headers, "tracestate")

	plain := producer.Message{}
	tracing.Inject(context.Background(), &plain)
	assert.Nil(t, plain.Headers)
	for _, headers := range []map[string]string{nil, {"traceparent": "nonsense"}} {
		assert.False(t, trace.SpanContextFromContext(tracing.Context(context.Background(), consumer.Message{Headers: headers})).IsValid())
	}
}

// Publish in a request's trace, and go on with it in the handler.
func Example() {
	ctx := context.Background() // the request's, with a span in it
	m := producer.Message{Payload: []byte("order 7")}
	tracing.Inject(ctx, &m)
	// p.Publish(ctx, m)

	handler := tracing.Each(nil, func(_ context.Context, m consumer.Message) error {
		if len(m.Payload) == 0 {
			return errors.New("an empty message")
		}
		return nil // ctx has the span of this message, a child of the publisher's
	})
	_ = handler // consumer.Run(ctx, handler)

	// Where there are no calls of a handler, such as in a batch of messages:
	ctx = tracing.Context(ctx, consumer.Message{Headers: m.Headers})
	fmt.Println(len(m.Headers), trace.SpanContextFromContext(ctx).IsValid())
	// Output: 0 false
}
