package executor

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// BenchmarkCall makes calls over a kept connection to a target in this process, with a payload of 256 bytes.
func BenchmarkCall(b *testing.B) {
	for _, kind := range kinds {
		b.Run(strings.ReplaceAll(kind, " ", "_"), func(b *testing.B) {
			s := serve(b, kind, DefaultConfig(), func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
			at := job.Instant(time.Now())
			f := &job.Fire{
				Entry: job.Entry{
					Locator: job.Locator{DueAt: at, ExecutionID: "exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1795644758752", Attempt: 1, DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ"},
					JobID:   "job_01M7ZJW5E6D77SAJPXRW35C2CA", ScheduledFor: at,
				},
				Target: job.Target{Method: http.MethodPost, URL: s.URL + "/hook", Body: []byte(`{"text":"` + strings.Repeat("x", 245) + `"}`), Timeout: time.Minute},
			}
			b.ReportAllocs()
			for b.Loop() {
				o, _ := new(calls).make(b.Context(), f, func(ctx context.Context) job.Outcome { return s.webhook.call(ctx, f, job.Fence{}) })
				if o.Kind != job.OutcomeSucceeded {
					b.Fatalf("%+v", o)
				}
			}
		})
	}
}
