// Package world runs the whole platform, with its embedded adapters, on an in-memory file system inside a testing/synctest
// bubble, where fake days pass in real seconds. It keeps the account of what was promised and of what the targets saw,
// which package ledger checks.
package world

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/loadtest/ledger"
	platform "github.com/minutehand/minutehand/services/all-in-one"
)

// Partitions is the partition count of a world.
const Partitions = 8

// World is a platform in a bubble. It is used only inside bubble.Test.
type World struct {
	T *testing.T
	// FS outlives the platform's processes.
	FS *vfs.MemFS
	// Targets are what webhooks reach.
	Targets *Targets
	// Configure may change the configuration before each start.
	Configure func(*platform.Config)

	Platform *platform.Platform
	// Metrics are those of the process that was started last; Log holds the output of all of them.
	Metrics *prometheus.Registry
	Log     Log
	stop    context.CancelFunc
	stopped chan error

	// The parts of the account; mu guards what scenarios add from several goroutines.
	mu          sync.Mutex
	began       time.Time
	crashed     bool
	jobs        []string
	definitions map[string][]string
	stops       []*ledger.Stop
}

// Log keeps what was logged.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// Says reports whether a line with the text was logged.
func (l *Log) Says(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.text.Bytes(), []byte(text))
}

// Gauge returns the value of a metric without labels.
func (w *World) Gauge(name string) float64 {
	w.T.Helper()
	families, err := w.Metrics.Gather()
	if err != nil {
		w.T.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	w.T.Fatalf("there is no metric %s", name)
	return 0
}

// Counter returns the value of a counter, over all of its labels.
func (w *World) Counter(name string) (sum float64) {
	w.T.Helper()
	families, err := w.Metrics.Gather()
	if err != nil {
		w.T.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
			return sum
		}
	}
	w.T.Fatalf("there is no metric %s", name)
	return 0
}

// New returns a world that has not started.
func New(t *testing.T) *World {
	return &World{
		T: t, FS: vfs.NewCrashableMem(), Targets: NewTargets(), began: time.Now(), definitions: map[string][]string{},
	}
}

// Start starts a process.
func (w *World) Start() {
	w.T.Helper()
	cfg := platform.DefaultConfig("/data")
	cfg.FS, cfg.Partitions = w.FS, Partitions
	cfg.Auditor.Codec = "snappy" // zstd's encoders are pooled, with channels that belong to the bubble of their first use
	if w.Configure != nil {
		w.Configure(&cfg)
	}
	w.Metrics = prometheus.NewRegistry()
	p, err := platform.Open(cfg, platform.Outside{
		Transport: w.Targets, Metrics: w.Metrics, Logger: slog.New(slog.NewMultiHandler(
			slog.NewTextHandler(w.T.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}), slog.NewTextHandler(&w.Log, nil),
		)),
	})
	if err != nil {
		w.T.Fatal(err)
	}
	ctx, stop := context.WithCancel(w.T.Context())
	w.Platform, w.stop, w.stopped = p, stop, make(chan error, 1)
	go func() { w.stopped <- p.Run(ctx) }()
	synctest.Wait()
}

// Stop stops the process gracefully.
func (w *World) Stop() {
	w.T.Helper()
	w.stop()
	if err := <-w.stopped; err != nil {
		w.T.Error("stop:", err)
	}
	if err := w.Platform.Close(); err != nil {
		w.T.Error("close:", err)
	}
}

// Crash cuts the power: the process is gone, and what was not synced is lost.
func (w *World) Crash() {
	w.T.Helper()
	w.lose(vfs.CrashCloneCfg{})
}

// Kill kills only the process: what it wrote stays, synced or not.
func (w *World) Kill() {
	w.T.Helper()
	w.lose(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
}

// lose goes on with a copy of the current file system; nothing that the dead process still does has any effect.
func (w *World) lose(cfg vfs.CrashCloneCfg) {
	w.T.Helper()
	w.crashed = true
	clone := w.FS.CrashClone(cfg)
	w.Targets.Cut()
	w.Stop()
	w.FS = clone
	w.Targets.Join()
}

// Do makes a request to the API and decodes the answer.
func (w *World) Do(method, path string, body any, headers ...string) (status int, answer map[string]any) {
	w.T.Helper()
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			w.T.Fatal(err)
		}
		reader = bytes.NewReader(text)
	}
	r := httptest.NewRequestWithContext(w.T.Context(), method, "/api/v1"+path, reader)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	w.Platform.API.Handler().ServeHTTP(rec, r)
	if rec.Body.Len() > 0 {
		if err := json.Unmarshal(rec.Body.Bytes(), &answer); err != nil {
			w.T.Fatalf("%s %s: %v in %q", method, path, err, rec.Body.String())
		}
	}
	if rec.Code >= http.StatusInternalServerError {
		w.T.Errorf("%s %s answered %d: %s", method, path, rec.Code, rec.Body.String())
	}
	return rec.Code, answer
}

// Must is Do, and fails the test unless the answer has the wanted status.
func (w *World) Must(want int, method, path string, body any, headers ...string) map[string]any {
	w.T.Helper()
	status, answer := w.Do(method, path, body, headers...)
	if status != want {
		w.T.Fatalf("%s %s answered %d, want %d: %v", method, path, status, want, answer)
	}
	return answer
}

// Executions reads all executions of a job, newest first.
func (w *World) Executions(jobID string) []map[string]any {
	w.T.Helper()
	var all []map[string]any
	cursor := ""
	for {
		path := "/jobs/" + jobID + "/executions?limit=500"
		if cursor != "" {
			path += "&cursor=" + cursor
		}
		page := w.Must(http.StatusOK, http.MethodGet, path, nil)
		items, _ := page["items"].([]any)
		for _, item := range items {
			x, _ := item.(map[string]any)
			all = append(all, x)
		}
		var ok bool
		if cursor, ok = page["next_cursor"].(string); !ok {
			return all
		}
	}
}

// Job returns a job body with a webhook to a host of the world.
func Job(name, host string, members map[string]any) map[string]any {
	body := map[string]any{"name": name, "target": map[string]any{"kind": "http_webhook", "url": "http://" + host + "/hook"}}
	for k, v := range members {
		body[k] = v
	}
	return body
}

// Until sleeps until an instant.
func Until(t time.Time) { time.Sleep(time.Until(t)) }
