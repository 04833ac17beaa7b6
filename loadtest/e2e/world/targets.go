package world

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// Behaviour answers a call with a status, or an error. It may block until the request's context ends.
type Behaviour func(r *http.Request, c ledger.Call) (status int, err error)

// Targets is a virtual network of webhook targets, by host name. It records every call.
type Targets struct {
	mu         sync.Mutex
	behaviours map[string]Behaviour
	calls      []ledger.Call
	cut        bool
}

// NewTargets returns a network in which every host answers 200.
func NewTargets() *Targets { return &Targets{behaviours: map[string]Behaviour{}} }

// Set gives a host a behaviour.
func (t *Targets) Set(host string, b Behaviour) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.behaviours[host] = b
}

// Cut lets no more calls through; Join lets them through again.
func (t *Targets) Cut() { t.set(true) }

// Join ends Cut.
func (t *Targets) Join() { t.set(false) }

func (t *Targets) set(cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cut = cut
}

// Calls returns all calls so far, in order.
func (t *Targets) Calls() []ledger.Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]ledger.Call(nil), t.calls...)
}

// CallsOf returns the calls of one job.
func (t *Targets) CallsOf(jobID string) []ledger.Call {
	var calls []ledger.Call
	for _, c := range t.Calls() {
		if c.JobID == jobID {
			calls = append(calls, c)
		}
	}
	return calls
}

var errCut = errors.New("network is cut")

// RoundTrip implements http.RoundTripper.
func (t *Targets) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(Object)), ContentLength: -1, Request: r}
	if r.Header.Get("Webhook-Id") == "" { // not a call
		return answer, nil
	}
	attempt, _ := strconv.Atoi(r.Header.Get("Minutehand-Attempt"))
	scheduled, _ := time.Parse(time.RFC3339Nano, r.Header.Get("Minutehand-Scheduled-For"))
	c := ledger.Call{
		Host: r.URL.Host, JobID: r.Header.Get("Minutehand-Job-Id"), ExecutionID: r.Header.Get("Webhook-Id"), Key: ledger.KeyOf(r.Header),
		Attempt: attempt, ScheduledFor: scheduled, Token: r.Header.Get("Minutehand-Fencing-Token"), At: time.Now(),
	}
	t.mu.Lock()
	if t.cut {
		t.mu.Unlock()
		return nil, errCut
	}
	n := len(t.calls)
	t.calls = append(t.calls, c)
	behave := t.behaviours[r.URL.Host]
	t.mu.Unlock()
	status := http.StatusOK
	if behave != nil {
		var err error
		if status, err = behave(r, c); err != nil {
			t.ended(n, false)
			return nil, err
		}
	}
	t.ended(n, false)
	answer.StatusCode = status
	return answer, nil
}

// Object is what targets answer, and what is at any URL that is not called.
const Object = "ok"

// Took notes a call that was not made as a request, and returns its number.
func (t *Targets) Took(c *ledger.Call) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls = append(t.calls, *c)
	return len(t.calls) - 1
}

// ended notes the end of the n-th call.
func (t *Targets) ended(n int, failed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls[n].EndedAt, t.calls[n].Failed = time.Now(), failed
}

// givenBack notes that the n-th call was given back.
func (t *Targets) givenBack(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls[n].EndedAt, t.calls[n].GivenBack = time.Now(), true
}

// Hang never answers.
func Hang(r *http.Request, _ ledger.Call) (int, error) {
	<-r.Context().Done()
	return 0, r.Context().Err()
}
