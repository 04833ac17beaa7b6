package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"sync"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// Clients is how many clients work at once.
const Clients = 32

// StatusError is an answer with an unexpected status.
type StatusError struct {
	Status int
	Body   string
}

// Error implements error.
func (e StatusError) Error() string { return fmt.Sprintf("answered %d: %s", e.Status, e.Body) }

// Transient reports whether an error is one after which a client tries again: no complete answer, or 503.
func Transient(err error) bool {
	var status StatusError
	return !errors.As(err, &status) || status.Status == http.StatusServiceUnavailable
}

// Create creates a job, under an idempotency key if one is given. When it returns the job's id, the client has its 201.
func (p *Process) Create(ctx context.Context, body map[string]any, key string) (string, error) {
	var j struct {
		JobID string `json:"job_id"`
	}
	if err := p.post(ctx, "/jobs", key, body, http.StatusCreated, &j); err != nil {
		return "", err
	}
	return j.JobID, nil
}

func (p *Process) post(ctx context.Context, path, key string, body any, want int, answer any) error {
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL+"/api/v1"+path, reader)
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode != want {
		return StatusError{resp.StatusCode, string(text)}
	}
	return json.Unmarshal(text, answer)
}

// registerAtOnce is how many jobs one request of Register creates.
const registerAtOnce = 200

// Register creates n jobs and returns their ids; each must be accepted. It creates many with a request, so that a machine that is busy
// with other tests has registered them well before they are due.
func (p *Process) Register(n int, body func(i int) map[string]any) []string {
	p.t.Helper()
	ids := make([]string, n)
	err := Each((n+registerAtOnce-1)/registerAtOnce, func(batch int) error {
		first := batch * registerAtOnce
		jobs := make([]map[string]any, min(registerAtOnce, n-first))
		for i := range jobs {
			jobs[i] = body(first + i)
		}
		var answer struct {
			Results []struct {
				Status int `json:"status"`
				Job    struct {
					ID string `json:"job_id"`
				} `json:"job"`
			} `json:"results"`
		}
		if err := p.post(p.t.Context(), "/jobs:batch", "", map[string]any{"jobs": jobs}, http.StatusOK, &answer); err != nil {
			return err
		}
		if len(answer.Results) != len(jobs) {
			return fmt.Errorf("%d jobs have %d results", len(jobs), len(answer.Results))
		}
		for i, r := range answer.Results {
			if r.Status != http.StatusCreated {
				return StatusError{r.Status, "a job of a batch"}
			}
			ids[first+i] = r.Job.ID
		}
		return nil
	})
	if err != nil {
		p.t.Fatal("register:", err)
	}
	return ids
}

// RegisterSame creates n jobs from one body, which may be large. It encodes the body once, and does not decode the answers,
// which repeat it.
func (p *Process) RegisterSame(n int, body map[string]any) []string {
	p.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		p.t.Fatal("register:", err)
	}
	ids := make([]string, n)
	err = Each(n, func(i int) error {
		req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.URL+"/api/v1/jobs", bytes.NewReader(text))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := p.client.Do(req)
		if err != nil {
			return err
		}
		answer, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusCreated {
			return StatusError{resp.StatusCode, string(answer)}
		}
		ids[i] = path.Base(resp.Header.Get("Location"))
		return nil
	})
	if err != nil {
		p.t.Fatal("register:", err)
	}
	return ids
}

// Cancel cancels jobs and returns when each cancel was acknowledged.
func (p *Process) Cancel(jobIDs []string) []ledger.Stop {
	p.t.Helper()
	stops := make([]ledger.Stop, len(jobIDs))
	err := Each(len(jobIDs), func(i int) error {
		var j map[string]any
		err := p.post(p.t.Context(), "/jobs/"+jobIDs[i]+"/cancel", "", nil, http.StatusOK, &j)
		stops[i] = ledger.Stop{JobID: jobIDs[i], Kind: ledger.StopCancel, AckedAt: time.Now()}
		return err
	})
	if err != nil {
		p.t.Fatal("cancel:", err)
	}
	return stops
}

// Each calls do for each i < n, Clients at a time, and returns the first error; after an error, nothing more begins.
func Each(n int, do func(i int) error) error {
	work := make(chan int)
	failed := make(chan struct{})
	var once sync.Once
	var first error
	var wg sync.WaitGroup
	for range Clients {
		wg.Go(func() {
			for i := range work {
				if err := do(i); err != nil {
					once.Do(func() { first = err; close(failed) })
				}
			}
		})
	}
feed:
	for i := range n {
		select {
		case work <- i:
		case <-failed:
			break feed
		}
	}
	close(work)
	wg.Wait()
	return first
}

// Once returns the body of a one_shot job that calls url at an instant; members override its own.
func Once(url string, at time.Time, members map[string]any) map[string]any {
	body := map[string]any{
		"name": "once", "type": "one_shot", "run_at": at.UTC().Truncate(time.Millisecond),
		"target": map[string]any{"kind": "http_webhook", "url": url},
	}
	for k, v := range members {
		body[k] = v
	}
	return body
}
