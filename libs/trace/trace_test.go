package trace_test

import (
	"context"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	minutehand "github.com/minutehand/minutehand/libs/trace"
)

const client = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestWhatAClientSentIsCarriedOnWithoutSpans(t *testing.T) {
	for parent, want := range map[string]string{client: client, "": "", "00-zz-yy-01": "", strings.Repeat("0", 600): ""} {
		ctx, span := minutehand.Start(t.Context(), "createJob", parent, trace.SpanKindServer)
		span.End()
		if got := minutehand.Of(ctx); got != want {
			t.Errorf("of %q came %q, want %q", parent, got, want)
		}
	}
	if got := minutehand.Of(context.Background()); got != "" {
		t.Errorf("of nothing came %q", got)
	}
}

func TestAttemptsOfAnExecutionShareATraceAndHaveTheirOwnSpans(t *testing.T) {
	for parent, traceID := range map[string]string{client: client[3:35], "": minutehand.OfExecution("exe_x")[3:35]} {
		first, second := minutehand.OfAttempt(parent, "exe_x", 1), minutehand.OfAttempt(parent, "exe_x", 2)
		if first[3:35] != traceID || second[3:35] != traceID || first == second || first == parent {
			t.Errorf("under %q the attempts have %s and %s, want trace %s", parent, first, second, traceID)
		}
	}
}
