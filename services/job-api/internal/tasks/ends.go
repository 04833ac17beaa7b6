package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// Why a worker is told to stop.
const (
	whyCancelled = "cancelled"
	whyTimeout   = "timeout"
)

const (
	// maxGrace bounds how long a worker that was told to stop keeps its lease, unless that is shorter.
	maxGrace = 10 * time.Second
	// MaxProgressBytes bounds what a worker tells of its progress.
	MaxProgressBytes = 64 << 10
	// maxErrorBytes bounds what is kept of an error beside a result.
	maxErrorBytes = 512
)

// beat is the body of a heartbeat.
type beat struct {
	FencingToken string          `json:"fencing_token"`
	Progress     json.RawMessage `json:"progress"`
	Sequence     *form.Whole     `json:"sequence"`
}

type beatAnswer struct {
	Cancelled   bool      `json:"cancelled"`
	Reason      string    `json:"reason,omitempty"`
	LeaseEndsAt time.Time `json:"lease_ends_at"`
}

// heartbeat keeps a task for its worker, stores what that tells of its progress, and tells it whether it shall stop.
func (ts *Tasks) heartbeat(ctx context.Context, r *edge.Request) (edge.Response, error) {
	var body beat
	if err := json.Unmarshal(r.Raw, &body); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	if len(body.Progress) > MaxProgressBytes {
		return edge.Response{}, edge.Invalid([]problem.Fault{{Pointer: "/progress", Code: "too-large", Message: "The progress may have at most 65536 bytes."}})
	}
	if string(body.Progress) == "null" {
		body.Progress = nil
	}
	// Another heartbeat of the same worker may change the lease at the same time: then this one begins with what stands.
	for range maxBeats {
		l, err := ts.held(ctx, r, body.FencingToken)
		if err != nil {
			return edge.Response{}, err
		}
		kept, err := ts.beat(ctx, r, l, &body)
		if err != nil {
			return edge.Response{}, err
		}
		if kept {
			ts.heard(ctx, l)
			return edge.Response{Status: http.StatusOK, Body: beatAnswer{Cancelled: l.Why != "", Reason: l.Why, LeaseEndsAt: l.Until}}, nil
		}
	}
	return edge.Response{}, errBusy()
}

// maxBeats bounds how often a request begins again because another one has changed the lease.
const maxBeats = 5

// beat renews a lease, and reports whether it did. The progress is stored first, so that a worker that was answered finds it after a crash; then
// the attempt's lease is renewed, and the task's.
func (ts *Tasks) beat(ctx context.Context, r *edge.Request, l *pools.Lease, body *beat) (kept bool, err error) {
	stops, err := ts.deps.Records.StopsOf(ctx, []string{l.Fire.JobID})
	if err != nil {
		return false, fmt.Errorf("read a stop record: %w", err)
	}
	if len(body.Progress) > 0 {
		sequence := int64(0)
		if body.Sequence != nil {
			sequence = int64(*body.Sequence)
		}
		if err := ts.putProgress(ctx, l, body.Progress, sequence, ts.deps.Clock.Now()); err != nil {
			return false, err
		}
		l.Progress = true
	}
	now, asked := ts.deps.Clock.Now(), l.Until
	if !now.Before(asked) {
		return false, nil // it took so long that the lease is over: then it is judged again
	}
	renew(l, stopped(stops, l), now)
	lease := attempts.Lease{
		Key: attempts.KeyOf(&l.Fire.Entry), Token: l.Token, Begun: true, MayHaveBegun: true,
		Holder: attempts.Holder{Name: l.Worker, DefinitionID: l.Fire.DefinitionID, Start: l.Token.Start},
	}
	if err := ts.deps.Records.Renew(ctx, []attempts.Lease{lease}, l.Until.Add(2*clock.MaxDifference)); err != nil {
		return false, fmt.Errorf("renew the lease of a task: %w", err)
	}
	l.Number++
	kept, err = ts.deps.Queue.Bind(ctx, poolAt(r), r.PathValue("task_id"), l, ts.deps.Clock.Now())
	if err != nil {
		return false, fmt.Errorf("keep a task: %w", err)
	}
	return kept, nil
}

// renew decides until when a worker keeps its task. One that is told to stop keeps it for a while, however often it asks.
func renew(l *pools.Lease, cancelled bool, now time.Time) {
	heartbeat, ends := l.Fire.Target.Heartbeat, l.Begun.Add(l.Fire.Target.Timeout)
	if l.Why == "" {
		if cancelled {
			l.Why, l.StoppedAt = whyCancelled, job.Instant(now)
		} else if !now.Before(ends) {
			l.Why, l.StoppedAt = whyTimeout, job.Instant(now)
		}
	}
	until, grace := now.Add(heartbeat), min(maxGrace, heartbeat)
	if l.Why != "" {
		until = l.StoppedAt.Add(grace)
	} else if last := ends.Add(grace); until.After(last) {
		until = last
	}
	l.Until = job.Instant(job.Later(until, now.Add(time.Millisecond)))
}

// conclude ends a task by its worker's word. A worker that tries again because the answer was lost is answered as before.
func (ts *Tasks) conclude(ctx context.Context, r *edge.Request, fence string, o job.Outcome) (edge.Response, error) {
	l, err := ts.held(ctx, r, fence)
	if err != nil {
		return ts.before(ctx, r, fence, o.Kind, err)
	}
	if l.Why == whyCancelled && o.Kind != job.OutcomeSucceeded {
		o = silence(l, ts.deps.Clock.Now())
	}
	ended, err := ts.end(ctx, l, o)
	if err != nil {
		return edge.Response{}, err
	}
	if !ended {
		return edge.Response{}, errLost()
	}
	return edge.Response{Status: http.StatusNoContent}, nil
}

// before answers a worker that does not have its task: as before, if that is because it has ended it.
func (ts *Tasks) before(ctx context.Context, r *edge.Request, fence string, kind job.OutcomeKind, lost error) (edge.Response, error) {
	key, ok := pools.KeyOf(r.PathValue("task_id"))
	var p *problem.Problem
	if _, bad := job.ParseExecutionID(key.ExecutionID); !ok || bad != nil || !errors.As(lost, &p) {
		return edge.Response{}, lost
	}
	ended, err := ts.onRecord(ctx, r.Tenant(), key, fence, kind)
	switch {
	case err != nil:
		return edge.Response{}, err
	case ended:
		return edge.Response{Status: http.StatusNoContent}, nil
	}
	return edge.Response{}, lost
}

// onRecord reports whether an attempt of which the hot tier has no task any more has ended on record, as its worker says: in the history, or
// on the log, which the history follows, if this process has put it there. An outcome that the hot tier alone has is not enough: its event may not
// be on the log, and who was to publish it may have lost the task. Then the entry finds it within a minute or two, and until then the worker is
// asked to try again.
func (ts *Tasks) onRecord(ctx context.Context, tenant job.Tenant, key attempts.Key, fence string, kind job.OutcomeKind) (bool, error) {
	// Who was told to stop, and failed, has ended it as cancelled.
	same := func(stands job.OutcomeKind) bool {
		return stands == kind || stands == job.OutcomeCancelled && kind != job.OutcomeSucceeded
	}
	ends := func(o *job.Outcome) bool { return o != nil && o.Fence.String() == fence && same(o.Kind) }
	if stands, known := ts.onLog.of(publishedEnd{tenant, key, fence}); known {
		return same(stands), nil
	}
	events, err := ts.deps.History.Execution(ctx, key.ExecutionID)
	if err != nil {
		return false, fmt.Errorf("read an execution: %w", err)
	}
	for i := range events {
		if e := &events[i]; e.Type == job.EventAttempt && e.Entry.Tenant == tenant && e.Entry.Attempt == key.Attempt && ends(&e.Outcome) {
			return true, nil
		}
	}
	records, err := ts.deps.Records.Lookup(ctx, []attempts.Key{key})
	if err != nil {
		return false, fmt.Errorf("look an attempt up: %w", err)
	}
	if !ends(records[0].Outcome) {
		return false, nil
	}
	owns, err := ts.owns(ctx, tenant, key)
	if owns {
		p := problem.New(http.StatusServiceUnavailable, "unavailable", "The end is stored, and not on record yet. Send the same request again.")
		p.RetryAfter = time.Second
		return false, p
	}
	return false, err
}

// owns reports whether an execution is one of a tenant, whose job may be deleted. The record of an attempt does not say whose it is.
func (ts *Tasks) owns(ctx context.Context, tenant job.Tenant, key attempts.Key) (bool, error) {
	ref, err := job.ParseExecutionID(key.ExecutionID)
	if err != nil {
		return false, nil //nolint:nilerr // it is nobody's
	}
	j, err := ts.deps.Jobs.Get(ctx, ref.JobID)
	if errors.Is(err, jobstore.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the job of a task: %w", err)
	}
	return j.Tenant == tenant, nil
}

// complete ends a task with success.
func (ts *Tasks) complete(ctx context.Context, r *edge.Request) (edge.Response, error) {
	var body struct {
		FencingToken string          `json:"fencing_token"`
		Result       json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(r.Raw, &body); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	o := job.Outcome{Kind: job.OutcomeSucceeded}
	answered(&o, body.Result)
	return ts.conclude(ctx, r, body.FencingToken, o)
}

// answered puts what a worker tells of the end where that of a webhook's response is.
func answered(o *job.Outcome, text []byte) {
	o.ResponseBody, o.ResponseBytes = text, int64(len(text))
	if len(text) > job.MaxResultBytes {
		o.ResponseBody, o.ResponseTruncated = text[:job.MaxResultBytes], true
	}
}

// fail ends a task with a failure.
func (ts *Tasks) fail(ctx context.Context, r *edge.Request) (edge.Response, error) {
	var body struct {
		FencingToken string          `json:"fencing_token"`
		Error        string          `json:"error"`
		Result       json.RawMessage `json:"result"`
		Retryable    *bool           `json:"retryable"`
		RetryAfter   *form.Time      `json:"retry_after"`
	}
	if err := json.Unmarshal(r.Raw, &body); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	o := job.Outcome{
		Kind: job.OutcomeFailed, Retryable: body.Retryable == nil || *body.Retryable, RetryAfter: body.RetryAfter.Or(0), Error: "the worker reported a failure",
	}
	if len(body.Result) > 0 {
		answered(&o, body.Result)
		if body.Error != "" {
			o.Error += ": " + strings.ToValidUTF8(body.Error[:min(len(body.Error), maxErrorBytes)], "")
		}
	} else {
		answered(&o, []byte(body.Error))
	}
	return ts.conclude(ctx, r, body.FencingToken, o)
}

// release gives a task back: the same attempt is handed out again.
//
// The lease is released first. A crash after that leaves a task that lapses, whose attempt then ends as lost, or is handed over again before
// that; a crash after the removal leaves the entry, which is put back.
func (ts *Tasks) release(ctx context.Context, r *edge.Request) (edge.Response, error) {
	var body struct {
		FencingToken string `json:"fencing_token"`
	}
	if err := json.Unmarshal(r.Raw, &body); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	l, err := ts.held(ctx, r, body.FencingToken)
	if err != nil {
		return ts.before(ctx, r, body.FencingToken, job.OutcomeCancelled, err)
	}
	if l.Why == whyCancelled {
		return ts.conclude(ctx, r, body.FencingToken, silence(l, ts.deps.Clock.Now()))
	}
	key := attempts.KeyOf(&l.Fire.Entry)
	if err := ts.deps.Records.Release(ctx, key, l.Token, true, l.Fire.DefinitionID); err != nil {
		return edge.Response{}, fmt.Errorf("release a task: %w", err)
	}
	if _, err := ts.deps.Queue.Remove(ctx, poolAt(r), pools.IDOf(key), l.Fence, pools.AnyNumber); err != nil {
		return edge.Response{}, fmt.Errorf("remove a task: %w", err)
	}
	ts.fireAgain(ctx, l.Fire.Entry)
	return edge.Response{Status: http.StatusNoContent}, nil
}
