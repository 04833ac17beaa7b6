package embed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/sdk"
)

// definedBy is the label by which a schedule of a key is known to be what the program asks for.
const definedBy = "minutehand.embed/definition"

// keepTries bounds how often the job of a key is looked at again because somebody else has changed it.
const keepTries = 10

// In runs a handler once, after a delay, and returns the id of the job. It is durable when In returns. With edits, everything that a job of
// the API has can be set: retries, overlap, notifications.
func (s *Scheduler) In(ctx context.Context, delay time.Duration, handler string, payload any, edits ...func(*sdk.JobCreate)) (jobID string, err error) {
	return s.At(ctx, time.Now().Add(delay), handler, payload, edits...)
}

// At runs a handler once, at an instant. One that is past is now.
func (s *Scheduler) At(ctx context.Context, at time.Time, handler string, payload any, edits ...func(*sdk.JobCreate)) (jobID string, err error) {
	j := define(handler, payload, edits)
	j.Type, j.RunAt = "one_shot", at.UTC().Truncate(time.Millisecond)
	created, err := s.client.CreateJob(ctx, j)
	if err != nil {
		return "", fmt.Errorf("schedule %s: %w", handler, err)
	}
	s.warn(created)
	return created.JobID, nil
}

// warn logs what the API says of a job that it created although something about it may not be meant. That no worker was seen which has the handler means nothing of one that this program has:
// it is seen once Run fetches tasks.
func (s *Scheduler) warn(j *sdk.Job) {
	s.mu.Lock()
	own := j.Target.Pool == pool && s.handlers[j.Target.Handler]
	s.mu.Unlock()
	for _, w := range j.Warnings {
		if w.Code != "unserved" || !own {
			s.logger.Warn("a schedule was accepted with a warning", "job_id", j.JobID, "handler", j.Target.Handler, "reason", w.Message)
		}
	}
}

// Cron runs a handler by a cron expression, as long as the folder lives. The key names the schedule: a program that asks for it again, such as
// at each of its starts, keeps it; with another expression, handler, payload or edit, it is changed.
func (s *Scheduler) Cron(ctx context.Context, key, expression, handler string, payload any, edits ...func(*sdk.JobCreate)) (jobID string, err error) {
	j := define(handler, payload, edits)
	j.Type, j.CronExpr = "cron", expression
	return s.keep(ctx, key, j)
}

// Every runs a handler at an interval. The key is as that of Cron.
func (s *Scheduler) Every(ctx context.Context, key string, interval time.Duration, handler string, payload any, edits ...func(*sdk.JobCreate)) (jobID string, err error) {
	j := define(handler, payload, edits)
	j.Type, j.Every = "interval", sdk.Duration(interval)
	return s.keep(ctx, key, j)
}

func define(handler string, payload any, edits []func(*sdk.JobCreate)) sdk.JobCreate {
	j := sdk.JobCreate{Name: handler, Target: sdk.Target{Kind: "pool", Pool: pool, Handler: handler, Body: payload}}
	for _, edit := range edits {
		edit(&j)
	}
	return j
}

// keep creates the job of a key, or changes it if it is not what is asked for.
func (s *Scheduler) keep(ctx context.Context, key string, j sdk.JobCreate) (string, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return "", fmt.Errorf("schedule %s: %w", key, err)
	}
	sum := sha256.Sum256(text)
	labels := map[string]string{definedBy: hex.EncodeToString(sum[:8])}
	for name, value := range j.Labels {
		labels[name] = value
	}
	j.Key, j.Labels = key, labels
	for range keepTries {
		created, err := s.client.CreateJob(ctx, j)
		if err == nil {
			s.warn(created)
			return created.JobID, nil
		}
		if !sdk.HasStatus(err, http.StatusConflict) {
			return "", fmt.Errorf("schedule %s: %w", key, err)
		}
		id, again, err := s.change(ctx, &j)
		if err != nil {
			return "", fmt.Errorf("schedule %s: %w", key, err)
		}
		if !again {
			return id, nil
		}
	}
	return "", fmt.Errorf("schedule %s: others change it all the time", key)
}

// change changes the job that has a key to what is asked for. If there is none any more, it has to be created again.
func (s *Scheduler) change(ctx context.Context, j *sdk.JobCreate) (id string, again bool, err error) {
	var header http.Header
	stands, err := s.client.GetJob(ctx, "key:"+j.Key, sdk.Header(&header))
	if err != nil {
		return "", sdk.HasStatus(err, http.StatusNotFound), notFoundIsNone(err)
	}
	if stands.Labels[definedBy] == j.Labels[definedBy] {
		return stands.JobID, false, nil
	}
	if stands.Status == "completed" || stands.Status == "cancelled" {
		return "", true, s.client.DeleteJob(ctx, stands.JobID)
	}
	var d sdk.JobDefinition
	text, err := json.Marshal(j)
	if err := errors.Join(err, json.Unmarshal(text, &d)); err != nil {
		return "", false, err
	}
	_, err = s.client.ReplaceJob(ctx, stands.JobID, header.Get("ETag"), d)
	if sdk.HasStatus(err, http.StatusPreconditionFailed) {
		return "", true, nil
	}
	return stands.JobID, false, err
}

func notFoundIsNone(err error) error {
	if sdk.HasStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}
