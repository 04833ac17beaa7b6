//go:build servers

package cluster_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// slowFor is how long a call to /slow takes.
const slowFor = 20 * time.Second

// sink is the target of all webhooks.
type sink struct {
	url string
	mu  sync.Mutex
	// calls in the order in which they arrived, and how many each job had.
	calls []ledger.Call
	count map[string]int
	// running counts calls to /slow that have not ended; cut, those whose caller went away.
	running, cut int
}

func newSink(t *testing.T) *sink {
	s := &sink{count: map[string]int{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// ServeHTTP records a call.
func (s *sink) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	at := time.Now()
	due, _ := time.Parse(time.RFC3339Nano, r.Header.Get("Minutehand-Scheduled-For"))
	attempt, _ := strconv.Atoi(r.Header.Get("Minutehand-Attempt"))
	c := ledger.Call{
		Host: r.Host, JobID: r.Header.Get("Minutehand-Job-Id"), ExecutionID: r.Header.Get("Webhook-Id"), Key: r.Header.Get("Idempotency-Key"), Attempt: attempt,
		ScheduledFor: due, Token: r.Header.Get("Minutehand-Fencing-Token"), At: at,
	}
	s.mu.Lock()
	s.calls = append(s.calls, c)
	s.count[c.JobID]++
	s.mu.Unlock()
	if r.URL.Path != "/slow" {
		return
	}
	s.add(1, 0)
	defer s.add(-1, 0)
	select {
	case <-time.After(slowFor):
	case <-r.Context().Done():
		s.add(0, 1)
	}
}

func (s *sink) add(running, cut int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.cut = s.running+running, s.cut+cut
}

func (s *sink) slow() (running, cut int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running, s.cut
}

// all returns the calls so far.
func (s *sink) all() []ledger.Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]ledger.Call(nil), s.calls...)
}

// of returns how many calls a job had.
func (s *sink) of(jobID string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[jobID]
}

// missing returns how many of the jobs had no call, and how many had more than one.
func (s *sink) missing(ids []string) (missing, repeated int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		switch n := s.count[id]; {
		case n == 0:
			missing++
		case n > 1:
			repeated++
		}
	}
	return missing, repeated
}
