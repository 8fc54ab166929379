// Package tracing carries an OpenTelemetry trace from a message's publisher to its handler, in the headers traceparent and tracestate (W3C
// Trace Context). It uses only the OpenTelemetry API: in a program without an SDK nothing is recorded, and a received message's trace is
// passed on.
package tracing

import (
	"cmp"
	"context"
	"errors"
	"maps"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/producer"
)

// name is the instrumentation's name.
const name = "github.com/mqnotify/mqnotify/tracing"

// Inject writes the trace of ctx, if it has one, into the message's headers. Call it before producer.Publish. It replaces m.Headers with a
// copy, and does not change the map that the caller has set.
func Inject(ctx context.Context, m *producer.Message) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	headers := make(map[string]string, len(m.Headers)+2)
	maps.Copy(headers, m.Headers)
	delete(headers, "tracestate") // of another trace
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(headers))
	m.Headers = headers
}

// Context returns ctx with the message's trace, if it has one.
func Context(ctx context.Context, m consumer.Message) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier(m.Headers))
}

// Each is consumer.Each with a span around each call of the handler, a child of the publisher's span. A nil provider means
// otel.GetTracerProvider().
func Each(provider trace.TracerProvider, handle func(ctx context.Context, m consumer.Message) error) consumer.Handler {
	tracer := cmp.Or(provider, otel.GetTracerProvider()).Tracer(name)
	return consumer.Each(func(ctx context.Context, m consumer.Message) error {
		ctx, span := tracer.Start(Context(ctx, m), "process "+m.Topic, trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(
				attribute.String("messaging.system", "mqnotify"),
				attribute.String("messaging.destination.name", m.Topic),
				attribute.Int64("messaging.message.id", int64(m.ID)), // attributes have no unsigned numbers
			))
		defer span.End()
		err := handle(ctx, m)
		if err != nil && !errors.Is(err, consumer.ErrStop) {
			span.RecordError(err)
			span.SetStatus(codes.Error, "the handler failed")
		}
		return err
	})
}
