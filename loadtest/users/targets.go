package users

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// slowFor is how long a slow target takes to answer.
const slowFor = 1500 * time.Millisecond

// targets are the users' targets: /BEHAVIOUR/VERSION/NAME. Healthy targets share one address and all others another, so
// that the others do not take the room of the healthy ones.
type targets struct {
	healthy, ill string
	mu           sync.Mutex
	calls        []ledger.Call
}

func newTargets(t *testing.T) *targets {
	t.Helper()
	s := &targets{}
	server := &http.Server{Handler: s, ReadHeaderTimeout: 2 * time.Minute} // longer than the executor keeps a connection that it does not use
	for _, address := range []struct {
		host string
		url  *string
	}{{"127.0.0.1", &s.healthy}, {"127.0.0.2", &s.ill}} {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address.host+":0")
		if err != nil {
			t.Fatal(err)
		}
		*address.url = "http://" + l.Addr().String()
		go func() { _ = server.Serve(l) }() // until it is closed
	}
	t.Cleanup(func() { _ = server.Close() })
	return s
}

// url returns the URL of a target with a behaviour.
func (s *targets) url(behaviour string, version int, name string) string {
	base := s.ill
	if behaviour == "ok" {
		base = s.healthy
	}
	return fmt.Sprintf("%s/%s/v%d/%s", base, behaviour, version, name)
}

// host returns the name of a target in the account.
func host(behaviour string, version int, name string) string {
	return fmt.Sprintf("%s.v%d.%s", behaviour, version, name)
}

// ServeHTTP records a call and behaves.
func (s *targets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	due, _ := time.Parse(time.RFC3339Nano, r.Header.Get("Minutehand-Scheduled-For"))
	attempt, _ := strconv.Atoi(r.Header.Get("Minutehand-Attempt"))
	behaviour, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	c := ledger.Call{
		Host: behaviour + "." + strings.ReplaceAll(rest, "/", "."), JobID: r.Header.Get("Minutehand-Job-Id"), ExecutionID: r.Header.Get("Webhook-Id"), Key: r.Header.Get("Idempotency-Key"),
		Attempt: attempt, ScheduledFor: due, Token: r.Header.Get("Minutehand-Fencing-Token"), At: at,
		// If nothing else is known, a call that hangs failed.
		Failed: behaviour == "fail" || behaviour == "hang" || behaviour == "flaky" && attempt == 1, Gone: behaviour == "gone",
	}
	s.mu.Lock()
	n := len(s.calls)
	s.calls = append(s.calls, c)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.calls[n].EndedAt = time.Now()
		s.mu.Unlock()
	}()
	switch {
	case behaviour == "bad":
		w.WriteHeader(http.StatusBadRequest)
	case c.Gone:
		w.WriteHeader(http.StatusGone)
	case behaviour == "hang":
		<-r.Context().Done()
	case behaviour == "slow":
		_ = run.Sleep(r.Context(), slowFor)
	case c.Failed:
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// all returns the calls so far, in the order in which they arrived.
func (s *targets) all() []ledger.Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]ledger.Call(nil), s.calls...)
}
