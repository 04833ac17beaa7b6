// Command roundtrip takes a job through its life with the client that oapi-codegen generates, and fails when an answer is
// not of the declared status and type.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"roundtrip/client"
	"time"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := roundTrip(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// expect returns the decoded answer of an operation, or says what came instead.
func expect[T any](operation string, body *T, response *http.Response, raw []byte) (*T, error) {
	if body == nil {
		return nil, fmt.Errorf("%s: %s %s", operation, response.Status, raw)
	}
	return body, nil
}

func roundTrip(ctx context.Context, server string) error {
	c, err := client.NewClientWithResponses(server)
	if err != nil {
		return err
	}
	every, url := "1h", "http://127.0.0.1:9/"
	created, err := c.CreateJobWithResponse(ctx, nil, client.JobCreate{
		Name: "round trip", Type: client.JobCreateTypeInterval, Every: &every,
		Target: client.Target{Kind: client.HttpWebhook, Url: &url},
	})
	if err != nil {
		return err
	}
	job, err := expect("createJob", created.JSON201, created.HTTPResponse, created.Body)
	if err != nil {
		return err
	}
	read, err := c.GetJobWithResponse(ctx, job.JobId)
	if err != nil {
		return err
	}
	if _, err := expect("getJob", read.JSON200, read.HTTPResponse, read.Body); err != nil {
		return err
	}
	if err := listed(ctx, c, job.JobId); err != nil {
		return err
	}
	if err := patched(ctx, c, job.JobId, read.HTTPResponse.Header.Get("ETag")); err != nil {
		return err
	}
	if err := pausedAndResumed(ctx, c, job.JobId); err != nil {
		return err
	}
	if err := executed(ctx, c, job.JobId); err != nil {
		return err
	}
	deleted, err := c.DeleteJobWithResponse(ctx, job.JobId)
	if err != nil {
		return err
	}
	if deleted.StatusCode() != http.StatusNoContent {
		return fmt.Errorf("deleteJob: %s %s", deleted.Status(), deleted.Body)
	}
	gone, err := c.GetJobWithResponse(ctx, job.JobId)
	if err != nil {
		return err
	}
	_, err = expect("getJob of a deleted job", gone.ApplicationproblemJSON404, gone.HTTPResponse, gone.Body)
	return err
}

// patched changes a job, once under the ETag that was read and once more under the same, which is stale by then.
func patched(ctx context.Context, c *client.ClientWithResponses, id string, etag string) error {
	name := "changed"
	answer, err := c.PatchJobWithApplicationMergePatchPlusJSONBodyWithResponse(ctx, id,
		&client.PatchJobParams{IfMatch: etag}, client.JobPatch{"name": name, "labels": map[string]any{"a": "b"}})
	if err != nil {
		return err
	}
	changed, err := expect("patchJob", answer.JSON200, answer.HTTPResponse, answer.Body)
	if err != nil {
		return err
	}
	if changed.Name != name {
		return fmt.Errorf("patchJob: the name is %q", changed.Name)
	}
	stale, err := c.PatchJobWithApplicationMergePatchPlusJSONBodyWithResponse(ctx, id,
		&client.PatchJobParams{IfMatch: etag}, client.JobPatch{"name": name})
	if err != nil {
		return err
	}
	if _, err := expect("patchJob with a stale ETag", stale.ApplicationproblemJSON412, stale.HTTPResponse, stale.Body); err != nil {
		return err
	}
	return nil
}

func pausedAndResumed(ctx context.Context, c *client.ClientWithResponses, id string) error {
	paused, err := c.PauseJobWithResponse(ctx, id)
	if err != nil {
		return err
	}
	if j, err := expect("pauseJob", paused.JSON200, paused.HTTPResponse, paused.Body); err != nil || j.Status != client.JobStatusPaused {
		return fmt.Errorf("pauseJob: %w, %s", err, paused.Body)
	}
	resumed, err := c.ResumeJobWithResponse(ctx, id)
	if err != nil {
		return err
	}
	if j, err := expect("resumeJob", resumed.JSON200, resumed.HTTPResponse, resumed.Body); err != nil || j.Status != client.JobStatusActive {
		return fmt.Errorf("resumeJob: %w, %s", err, resumed.Body)
	}
	return nil
}

// listed finds the job in the list of jobs.
func listed(ctx context.Context, c *client.ClientWithResponses, id string) error {
	r, err := c.ListJobsWithResponse(ctx, nil)
	if err != nil {
		return err
	}
	page, err := expect("listJobs", r.JSON200, r.HTTPResponse, r.Body)
	if err != nil {
		return err
	}
	for _, j := range page.Items {
		if j.JobId == id {
			return nil
		}
	}
	return fmt.Errorf("listJobs: %s is not among %d jobs", id, len(page.Items))
}

// executed triggers the job, and waits until the execution has an attempt and is listed.
func executed(ctx context.Context, c *client.ClientWithResponses, id string) error {
	triggered, err := c.TriggerJobWithResponse(ctx, id, nil)
	if err != nil {
		return err
	}
	t, err := expect("triggerJob", triggered.JSON202, triggered.HTTPResponse, triggered.Body)
	if err != nil {
		return err
	}
	for {
		r, err := c.GetExecutionWithResponse(ctx, t.ExecutionId)
		if err != nil {
			return err
		}
		x, err := expect("getExecution", r.JSON200, r.HTTPResponse, r.Body)
		if err != nil {
			return err
		}
		if len(x.Attempts) > 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	r, err := c.ListExecutionsWithResponse(ctx, id, nil)
	if err != nil {
		return err
	}
	page, err := expect("listExecutions", r.JSON200, r.HTTPResponse, r.Body)
	if err != nil {
		return err
	}
	for _, x := range page.Items {
		if x.ExecutionId == t.ExecutionId {
			return nil
		}
	}
	return fmt.Errorf("listExecutions: %s is missing: %s", t.ExecutionId, r.Body)
}
