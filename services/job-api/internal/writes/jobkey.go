package writes

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// maxKeyTries bounds how often a key is asked for while others take it and delete their jobs.
const maxKeyTries = 10

// takeJobKey gives a new job its key, before anything else of it is written. A job that is deleted, or that was never created, gives its
// key up. Of the latter nobody knows whether its request has died or stalls, so a void row takes its place first: then the request, if it
// goes on, finds that row instead of creating its job. A crash after this leaves a key whose job was never created.
func (ws *Writes) takeJobKey(ctx context.Context, j *job.Job) error {
	if j.Key == "" {
		return nil
	}
	gone := ""
	for try := 1; ; try++ {
		holder, err := ws.deps.Jobs.HoldJobKey(ctx, *j, gone)
		if err != nil {
			return fmt.Errorf("take the key of job %s: %w", j.ID, err)
		}
		if holder == j.ID {
			return nil
		}
		if try == maxKeyTries { // it leaves the key to the others
			return fmt.Errorf("take the key of job %s: others took it %d times", j.ID, try)
		}
		if gone, err = ws.freedBy(ctx, j, holder); err != nil {
			return err
		}
	}
}

// freedBy returns the job that has the key of a new one, if it is gone; "" to ask anew. That there is such a job is its error.
func (ws *Writes) freedBy(ctx context.Context, j *job.Job, holder string) (gone string, err error) {
	standing, err := ws.deps.Jobs.Get(ctx, holder)
	switch {
	case errors.Is(err, jobstore.ErrNotFound):
		err = ws.deps.Jobs.Create(ctx, job.Void(holder, j.Tenant, j.Key, job.Instant(ws.deps.Clock.Now())), true)
		if errors.Is(err, jobstore.ErrExists) {
			return "", nil // it was created just now, or another request came before this one
		}
		if err != nil {
			return "", fmt.Errorf("void job %s: %w", holder, err)
		}
	case err != nil:
		return "", fmt.Errorf("read job %s: %w", holder, err)
	case !standing.Deleted:
		return "", keyTaken("The job " + holder + " has this key; change that one, or use another key.")
	}
	return holder, nil
}

// keptJobKey finds out about the row that stands where a job is to be created: it is the job's own, of an earlier try, or another request
// took the job's key.
func (ws *Writes) keptJobKey(ctx context.Context, j *job.Job) error {
	if j.Key == "" {
		return nil
	}
	standing, err := ws.deps.Jobs.Get(ctx, j.ID)
	if err == nil && standing.IsVoid() {
		return lostKey()
	}
	return err
}

// lostKey returns the answer to a request that another has overtaken.
func lostKey() *problem.Problem {
	return keyTaken("Another request took this key before this one was done; read the job with the key, if there is one, or repeat this under a new Idempotency-Key.")
}

func keyTaken(what string) *problem.Problem {
	return problem.New(http.StatusConflict, "key-taken", "A job's key belongs to one job at a time.",
		problem.Fault{Pointer: "/key", Code: "taken", Message: what})
}

// checkKey refuses to change a job's key.
func checkKey(standing, asked string) error {
	if asked == "" || asked == standing {
		return nil
	}
	return fixedKey()
}

func fixedKey() *problem.Problem {
	return edge.Invalid([]problem.Fault{{
		Pointer: "/key", Code: "fixed", Message: "A job keeps the key with which it was created; leave it out, or create another job.",
	}})
}
