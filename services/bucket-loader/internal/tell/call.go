package tell

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/egress"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/notices"
)

// result is how a call went.
type result string

// failed is tried again. refused is not, because no repetition mends it; nor is givenUp, which has failed for too long, nor dropped: nobody is to be
// told any more.
const (
	told    result = "told"
	failed  result = "failed"
	refused result = "refused"
	givenUp result = "given_up"
	dropped result = "dropped"
)

// Transport returns what makes the calls: to public addresses only unless others are allowed, without a proxy.
func Transport(allowPrivate bool) *http.Transport {
	return &http.Transport{
		DialContext: egress.Dialer(allowPrivate).DialContext, ForceAttemptHTTP2: true, DisableCompression: true, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns: 64, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10,
	}
}

// maxDrain is how much of an answer is read, so that its connection can be used again.
const maxDrain = 64 << 10

// Body is what an owner is told.
type Body struct {
	NotificationID string    `json:"notification_id"`
	Cause          job.Cause `json:"cause"`
	At             time.Time `json:"at"`
	Reason         string    `json:"reason"`
	JobID          string    `json:"job_id"`
	JobName        string    `json:"job_name"`
	JobKey         string    `json:"job_key,omitempty"`
	Owner          string    `json:"owner,omitempty"`
	ExecutionID    string    `json:"execution_id,omitempty"`
	Attempts       int       `json:"attempts,omitempty"`
	IncidentID     string    `json:"incident_id,omitempty"`
	// QuietUntil is until when the owner is not told of the cause again.
	QuietUntil time.Time `json:"quiet_until"`
}

func hostOf(to *job.Notify) string {
	u, err := url.Parse(to.Target.URL)
	if err != nil {
		return ""
	}
	return u.Host
}

// call makes a call, and says why it is not to be made again.
func (t *Teller) call(ctx context.Context, x *notices.Notice, j *job.Job, to *job.Notify) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	req, err := t.request(ctx, x, j, to)
	if err != nil {
		return refused, err
	}
	resp, err := t.Targets.RoundTrip(req) // not a client, which would follow redirects
	switch {
	case egress.Refused(err):
		return refused, errors.New("the address is loopback or private, which is not called (allow_private_targets)")
	case err != nil:
		return failed, errors.New("the connection failed") // its error may show the URL
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		_, _ = io.CopyN(io.Discard, resp.Body, maxDrain) // the status is the answer
	}
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		return told, nil
	case code == http.StatusRequestTimeout || code == http.StatusTooEarly || code == http.StatusTooManyRequests || code >= 500:
		return failed, fmt.Errorf("the target answered %d", code)
	default:
		return refused, fmt.Errorf("the target answered %d", code)
	}
}

func (t *Teller) request(ctx context.Context, x *notices.Notice, j *job.Job, to *job.Notify) (*http.Request, error) {
	id := x.ID()
	body, err := json.Marshal(Body{
		NotificationID: id, Cause: x.Cause, At: x.At, Reason: x.Reason, JobID: j.ID, JobName: j.Name, JobKey: j.Key, Owner: j.Owner,
		ExecutionID: x.ExecutionID, Attempts: x.Attempts, IncidentID: x.IncidentID, QuietUntil: x.Over(),
	})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.Target.URL, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the URL cannot be read") // the error shows it
	}
	for name, value := range to.Target.Headers {
		req.Header.Set(name, value)
	}
	for name, value := range map[string]string{
		"Idempotency-Key": id, "Webhook-Id": id, "Webhook-Timestamp": strconv.FormatInt(t.Clock.Now().Unix(), 10), "Minutehand-Job-Id": j.ID,
		"Minutehand-Cause": string(x.Cause), "Minutehand-Hops": strconv.Itoa(x.Hops),
	} {
		req.Header.Set(name, value)
	}
	for name, value := range map[string]string{"Content-Type": "application/json", "User-Agent": "Minutehand"} {
		if req.Header.Get(name) == "" {
			req.Header.Set(name, value)
		}
	}
	return req, nil
}
