package process

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// Sink is a target on its own port, so that an executor sees it as its own host. It records every call, and answers 200
// unless the path was given another behaviour.
type Sink struct {
	URL string

	mu         sync.Mutex
	behaviours map[string]http.HandlerFunc
	calls      []ledger.Call
	paths      map[string]int
	jobs       map[string]int
}

// NewSink starts a sink, which ends with the test.
func NewSink(t *testing.T) *Sink {
	s := &Sink{behaviours: map[string]http.HandlerFunc{}, paths: map[string]int{}, jobs: map[string]int{}}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.CloseClientConnections() // this also ends the calls that hang
		server.Close()
	})
	s.URL = server.URL
	return s
}

// ServeHTTP implements http.Handler.
func (s *Sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	attempt, _ := strconv.Atoi(r.Header.Get("Minutehand-Attempt"))
	scheduled, _ := time.Parse(time.RFC3339Nano, r.Header.Get("Minutehand-Scheduled-For"))
	c := ledger.Call{
		Host: r.Host + r.URL.Path, JobID: r.Header.Get("Minutehand-Job-Id"), ExecutionID: r.Header.Get("Webhook-Id"), Key: r.Header.Get("Idempotency-Key"),
		Attempt: attempt, ScheduledFor: scheduled, Token: r.Header.Get("Minutehand-Fencing-Token"), At: now,
	}
	s.mu.Lock()
	s.calls = append(s.calls, c)
	s.paths[r.URL.Path]++
	s.jobs[c.JobID]++
	behave := s.behaviours[r.URL.Path]
	s.mu.Unlock()
	if behave != nil {
		behave(w, r)
	}
}

// Set gives a path a behaviour; nil answers 200.
func (s *Sink) Set(path string, b http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behaviours[path] = b
}

// Hang never answers; it returns when the caller has gone.
func Hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// Calls returns all calls so far, in order.
func (s *Sink) Calls() []ledger.Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]ledger.Call(nil), s.calls...)
}

// Count returns how many calls a path had.
func (s *Sink) Count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paths[path]
}

// Called returns how many jobs were called at least once.
func (s *Sink) Called() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.jobs)
}

// CallsOf returns how many calls each of some jobs had.
func (s *Sink) CallsOf(jobIDs []string) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := make(map[string]int, len(jobIDs))
	for _, id := range jobIDs {
		calls[id] = s.jobs[id]
	}
	return calls
}
