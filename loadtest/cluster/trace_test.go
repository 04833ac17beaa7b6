//go:build servers

package cluster_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/minutehand/minutehand/libs/dispatch"
)

// span is a span as the collector received it.
type span struct{ service, name, id, parent string }

// collect starts an OTLP collector. It returns its address, and a function that returns what it has of a trace.
func collect(t *testing.T) (url string, of func(traceID string) map[string]span) {
	t.Helper()
	var mu sync.Mutex
	traces := map[string]map[string]span{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var request collector.ExportTraceServiceRequest
		if err != nil || proto.Unmarshal(body, &request) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, of := range request.GetResourceSpans() {
			service := ""
			for _, a := range of.GetResource().GetAttributes() {
				if a.GetKey() == "service.name" {
					service = a.GetValue().GetStringValue()
				}
			}
			for _, scope := range of.GetScopeSpans() {
				for _, s := range scope.GetSpans() {
					id := hex.EncodeToString(s.GetTraceId())
					if traces[id] == nil {
						traces[id] = map[string]span{}
					}
					traces[id][s.GetName()] = span{service, s.GetName(), hex.EncodeToString(s.GetSpanId()), hex.EncodeToString(s.GetParentSpanId())}
				}
			}
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, func(traceID string) map[string]span {
		mu.Lock()
		defer mu.Unlock()
		spans := map[string]span{}
		for name, s := range traces[traceID] {
			spans[name] = s
		}
		return spans
	}
}

func TestOneTraceLeadsFromTheRequestOverKafkaToTheCall(t *testing.T) {
	const traceID, clientSpan = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	url, spansOf := collect(t)
	f := newInstallation(t).fleet("OTEL_EXPORTER_OTLP_ENDPOINT="+url, "OTEL_BSP_SCHEDULE_DELAY=200")
	called := make(chan string, 1)
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { called <- r.Header.Get("Traceparent") }))
	defer target.Close()
	job := f.oneShot(time.Now().Add(time.Second), "")
	job["target"] = map[string]any{"kind": "http_webhook", "url": target.URL}
	body, err := json.Marshal(job)
	f.must(err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+f.Member("job-api", 0).Listen+"/api/v1/jobs", bytes.NewReader(body))
	f.must(err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Traceparent", "00-"+traceID+"-"+clientSpan+"-01")
	resp, err := http.DefaultClient.Do(r)
	f.must(err)
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("answered %d (%v)", resp.StatusCode, err)
	}
	var spans map[string]span
	eventually(t, "the spans are sent", 30*time.Second, func() bool { spans = spansOf(traceID); return len(spans) == 3 })
	parent := clientSpan
	for _, step := range [][2]string{{"minutehand-job-api", "createJob"}, {"minutehand-scheduler-worker", "dispatch"}, {"minutehand-executor", "invoke"}} {
		s := spans[step[1]]
		if s.service != step[0] || s.parent != parent {
			t.Errorf("%s is a span of %q under %q, want %q under %q", step[1], s.service, s.parent, step[0], parent)
		}
		parent = s.id
	}
	if got, want := <-called, "00-"+traceID+"-"+parent+"-01"; got != want {
		t.Errorf("the target was called with %q, want %q", got, want)
	}

	client, err := kgo.NewClient(kgo.SeedBrokers(f.config.Kafka.Brokers...), kgo.ConsumeTopics(f.config.Kafka.Prefix+dispatch.TopicFires),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	f.must(err)
	defer client.Close()
	fetches := client.PollRecords(t.Context(), 1)
	f.must(fetches.Err())
	want := "00-" + traceID + "-" + spans["dispatch"].id + "-01"
	if headers := fetches.Records()[0].Headers; len(headers) != 1 || headers[0].Key != "traceparent" || string(headers[0].Value) != want {
		t.Errorf("the fire's headers are %v, want traceparent %s", headers, want)
	}
}
