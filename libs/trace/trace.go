// Package trace carries one trace from an API request to the calls of its job's target, as W3C trace context: in the entry, in the
// fire and its header on the log, and in the call's traceparent.
//
// Spans are made only after [Setup] has found where to send them; what a client sent is carried on in any case.
package trace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// header is the name of the trace context in HTTP and on the log.
const header = "traceparent"

// scope names the instrumentation.
const scope = "github.com/minutehand/minutehand"

// on reports whether spans are made.
var on atomic.Bool

// Setup sends spans over HTTP to where the standard variables OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT
// say; without them it does nothing. It honours OTEL_TRACES_SAMPLER and the others. Spans that cannot be sent in time are dropped.
// stop sends what is left, within a few seconds.
func Setup(ctx context.Context, service, version string, logger *slog.Logger) (stop func(), err error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return func() {}, nil
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("OTLP: %w", err)
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(resource.NewSchemaless(
		attribute.String("service.name", "minutehand-"+service), attribute.String("service.version", version),
	)))
	otel.SetTracerProvider(provider)
	on.Store(true)
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			logger.Warn("the last traces were not sent", "error", err)
		}
	}, nil
}

// stopWithin bounds how long a stop waits for the last traces to be sent.
const stopWithin = 5 * time.Second

// On reports whether spans are made; if not, there is no need to prepare them.
func On() bool { return on.Load() }

// Start begins a span under a traceparent; if that is empty or not valid, it begins a trace.
func Start(ctx context.Context, name, parent string, kind trace.SpanKind, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{header: parent})
	return otel.Tracer(scope).Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attributes...))
}

// Of returns the traceparent of a context's span, or of what was extracted into it; "" for none.
func Of(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[header]
}

// OfExecution returns the traceparent of an execution that no traced request asked for. Its trace id depends only on the execution,
// so that all its attempts share one trace.
func OfExecution(executionID string) string {
	id := sha256.Sum256([]byte(executionID))
	return format(hex.EncodeToString(id[:16]), executionID, 0, "01")
}

// OfAttempt returns the traceparent of an attempt's call for which no span is made: in the parent's trace, or otherwise in the
// execution's own.
func OfAttempt(parent, executionID string, attempt int) string {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{header: parent})
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		return format(sc.TraceID().String(), executionID, attempt, sc.TraceFlags().String())
	}
	id := sha256.Sum256([]byte(executionID))
	return format(hex.EncodeToString(id[:16]), executionID, attempt, "01")
}

func format(traceID, executionID string, attempt int, flags string) string {
	span := sha256.Sum256([]byte(executionID + "#" + strconv.Itoa(attempt)))
	return "00-" + traceID + "-" + hex.EncodeToString(span[:8]) + "-" + flags
}
