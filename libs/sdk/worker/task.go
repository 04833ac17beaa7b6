package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/sdk"
)

// Task is what a handler works on.
type Task struct {
	ID             string            `json:"task_id"`
	ExecutionID    string            `json:"execution_id"`
	Attempt        int               `json:"attempt"`
	JobID          string            `json:"job_id"`
	Handler        string            `json:"handler"`
	FencingToken   string            `json:"fencing_token"`   // grows with each time that the execution is handed out: store it beside what you write
	IdempotencyKey string            `json:"idempotency_key"` // is the same for all attempts of the execution
	Headers        map[string]string `json:"headers"`
	ScheduledFor   time.Time         `json:"scheduled_for"`
	NominalAt      time.Time         `json:"nominal_at"` // is the instant of the schedule, before any jitter
	EndsAt         time.Time         `json:"ends_at"`    // is when the timeout of the target is over

	// PayloadRef is the object in the place of the payload, which the handler fetches; nil for none.
	PayloadRef  *sdk.BodyRef    `json:"payload_ref"`
	RawPayload  json.RawMessage `json:"payload"`
	RawProgress json.RawMessage `json:"progress"`
	Heartbeat   string          `json:"heartbeat_timeout"`

	timeout time.Duration // is Heartbeat
	result  any
	beats   *beats
}

// Payload decodes the body of the job's target.
func (t *Task) Payload(into any) error {
	if len(t.RawPayload) == 0 {
		return Permanent(errors.New("the task has no payload"))
	}
	if err := json.Unmarshal(t.RawPayload, into); err != nil {
		return Permanent(fmt.Errorf("the payload is not what the handler expects: %w", err))
	}
	return nil
}

// Progress decodes the last checkpoint of the execution, also that of an earlier attempt, and reports whether there is one.
func (t *Task) Progress(into any) (bool, error) {
	if len(t.RawProgress) == 0 {
		return false, nil
	}
	return true, json.Unmarshal(t.RawProgress, into)
}

// Checkpoint stores how far the task has come, as JSON of at most 64 KiB. It is durable when Checkpoint returns nil, and the next attempt finds it
// with Progress. An error with which the context has ended too means that the task is no longer this worker's.
func (t *Task) Checkpoint(ctx context.Context, progress any) error {
	text, err := json.Marshal(progress)
	if err != nil {
		return Permanent(fmt.Errorf("encode the progress: %w", err))
	}
	if err := t.beats.beat(ctx, text); err != nil {
		return fmt.Errorf("store the progress: %w", err)
	}
	t.RawProgress = text
	return nil
}

// SetResult gives the task a result, of which the first 12,288 bytes of JSON are kept with the attempt, whether it succeeds or fails.
func (t *Task) SetResult(result any) { t.result = result }

// Why the context of a handler ended: its cause (context.Cause).
var (
	// ErrCancelled is the cause when the execution was cancelled.
	ErrCancelled = errors.New("the execution was cancelled")
	// ErrTimeout is the cause when the timeout of the target is over.
	ErrTimeout = errors.New("the task has taken as long as it may")
	// ErrLost is the cause when the task is no longer this worker's, because it was not heard for too long.
	ErrLost = errors.New("the task is no longer this worker's")
	// ErrDrained is the cause when the worker ends. A handler that returns an error then gives the task back.
	ErrDrained = errors.New("the worker ends")
)

// failure is an error with what it means for the next attempt.
type failure struct {
	error
	permanent bool
	after     time.Duration
}

// Unwrap returns the error.
func (f failure) Unwrap() error { return f.error }

// Permanent says that no further attempt can succeed: the execution becomes a dead letter.
func Permanent(err error) error { return failure{error: err, permanent: true} }

// RetryAfter says when another attempt is worth a try: not before the pause, which may be longer than the one of the retry policy.
func RetryAfter(pause time.Duration, err error) error { return failure{error: err, after: pause} }

// Typed makes a handler of a function that takes the payload as a value of its type, which is zero if there is none.
func Typed[T any](handle func(ctx context.Context, t *Task, payload T) error) func(context.Context, *Task) error {
	return func(ctx context.Context, t *Task) error {
		var payload T
		if t.PayloadRef != nil {
			return Permanent(errors.New("the job has a body_ref, and this handler takes a payload"))
		}
		if len(t.RawPayload) > 0 {
			if err := t.Payload(&payload); err != nil {
				return err
			}
		}
		return handle(ctx, t, payload)
	}
}
