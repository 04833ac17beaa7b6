package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// invoke is the network of targets: the first label of a host determines its behaviour.
func (w *world) invoke(p *process, r *http.Request) (*http.Response, error) {
	attempt, _ := strconv.Atoi(r.Header.Get("Minutehand-Attempt"))
	scheduled, _ := time.Parse(time.RFC3339Nano, r.Header.Get("Minutehand-Scheduled-For"))
	c := ledger.Call{
		Host: r.URL.Host, JobID: r.Header.Get("Minutehand-Job-Id"), ExecutionID: r.Header.Get("Webhook-Id"), Key: ledger.KeyOf(r.Header),
		Attempt: attempt, ScheduledFor: scheduled, Token: r.Header.Get("Minutehand-Fencing-Token"), At: time.Now(), Ahead: p.clock.Difference(),
	}
	w.mu.Lock()
	k := attempts.Key{ExecutionID: c.ExecutionID, Attempt: attempt}
	check := w.checked[tokenKey(k, c.Token)]
	c.CheckedAt, c.Replaced, c.AheadAtLook = check.at, check.replaced, c.Ahead
	if ahead, looked := w.ahead[look{p, attemptKey(k)}]; looked {
		c.AheadAtLook = max(c.Ahead, ahead)
	}
	n := len(w.calls)
	w.calls, w.callers = append(w.calls, c), append(w.callers, p)
	w.mu.Unlock()
	w.tell(p.name, fmt.Sprintf("%s/%d", c.ExecutionID, attempt), "invokes "+c.Host+" under token "+c.Token)
	status, err := w.behave(r, c)
	w.mu.Lock()
	w.calls[n].EndedAt, w.calls[n].AheadAtEnd = time.Now(), p.clock.Difference()
	w.calls[n].Failed, w.calls[n].Gone = err != nil || status >= http.StatusInternalServerError, status == http.StatusGone && !strings.HasSuffix(c.Host, ledger.ElsewhereSuffix) // that pauses no job
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("ok")), Request: r}, nil
}

func (w *world) behave(r *http.Request, c ledger.Call) (status int, err error) {
	behaviour, _, _ := strings.Cut(c.Host, ".")
	switch behaviour {
	case "slow":
		return http.StatusOK, run.Sleep(r.Context(), 2*time.Second)
	case "hang":
		<-r.Context().Done()
		return 0, r.Context().Err()
	case "fail":
		return http.StatusServiceUnavailable, nil
	case "bad":
		return http.StatusBadRequest, nil
	case "gone":
		return http.StatusGone, nil
	case "cut":
		return 0, errors.New("connection reset")
	case "flaky":
		if w.faults.dice.roll("flaky/%s/%d", c.ExecutionID, c.Attempt) < 0.5 {
			return http.StatusInternalServerError, nil
		}
	}
	return http.StatusOK, nil
}

// notified is an owner that is told something.
func (w *world) notified(p *process, r *http.Request) (*http.Response, error) {
	n := ledger.Notification{ReceivedAt: time.Now(), Host: r.URL.Host}
	if err := json.NewDecoder(r.Body).Decode(&n); err != nil || n.ID != r.Header.Get("Idempotency-Key") || r.Header.Get("Minutehand-Hops") != "1" {
		w.violate("I14", n.JobID, "an owner is told %+v under %v: %v", n, r.Header, err)
	}
	w.mu.Lock()
	w.told[n.ID]++
	try := w.told[n.ID]
	w.mu.Unlock()
	w.tell(p.name, n.ID, "tells "+n.Host+" of "+string(n.Cause))
	status, hangs := http.StatusNoContent, false
	switch roll := w.faults.dice.roll("notified/%s/%d", n.ID, try); {
	case roll < 0.1:
		status = http.StatusServiceUnavailable
	case roll < 0.15:
		hangs = true
	case roll < 0.18:
		status, n.Refused = http.StatusNotFound, true
	default:
		n.Accepted = true
	}
	w.mu.Lock()
	w.notifications = append(w.notifications, n) // of an owner that hangs too: it was called
	w.mu.Unlock()
	if hangs {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}
