package main

import (
	"net"
	"net/http"
	"sort"
	"sync"
	"time"
)

// demoSink answers and remembers.
type demoSink struct {
	mu    sync.Mutex
	seen  map[demoKey]int
	late  []time.Duration
	early int
}

type demoKey struct {
	execution string
	attempt   string
}

func (s *demoSink) start() (stop func(), base string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // the listener lives as long as the process
	if err != nil {
		return nil, "", err
	}
	server := &http.Server{ReadHeaderTimeout: idle, Handler: s}
	go func() { _ = server.Serve(listener) }()
	return func() { _ = server.Close() }, "http://" + listener.Addr().String(), nil
}

// ServeHTTP implements http.Handler.
func (s *demoSink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	k := demoKey{r.Header.Get("Webhook-Id"), r.Header.Get("Minutehand-Attempt")}
	due, err := time.Parse(time.RFC3339Nano, r.Header.Get("Minutehand-Scheduled-For"))
	if err != nil {
		due = now
	}
	s.note(k, due, now)
	if r.URL.Path == "/fail" {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// note remembers an attempt.
func (s *demoSink) note(k demoKey, due, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[k]++
	if k.attempt == "1" {
		s.late = append(s.late, now.Sub(due))
		if now.Before(due) {
			s.early++
		}
	}
}

func (s *demoSink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

// demoAccount is what the sink saw, put together.
type demoAccount struct {
	calls, retries, duplicates, early int
	late                              []time.Duration
}

func (s *demoSink) account() demoAccount {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := demoAccount{early: s.early, late: append([]time.Duration(nil), s.late...)}
	for k, n := range s.seen {
		a.calls += n
		a.duplicates += n - 1
		if k.attempt != "1" {
			a.retries++
		}
	}
	sort.Slice(a.late, func(i, j int) bool { return a.late[i] < a.late[j] })
	return a
}

func (a *demoAccount) quantile(q float64) time.Duration {
	if len(a.late) == 0 {
		return 0
	}
	return a.late[min(int(q*float64(len(a.late))), len(a.late)-1)].Round(10 * time.Microsecond)
}
