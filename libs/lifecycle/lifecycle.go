// Package lifecycle changes a job so that the change holds from the moment at which it is acknowledged: first the row,
// by compare-and-set on its version, then the stop record, which every attempt is judged by when it begins.
//
// A crash between the two leaves a change that was never acknowledged, and that still takes effect as entries are
// judged by the row. A change that was acknowledged outlives the loss of the hot tier: fires of an older incarnation
// are judged by the row again.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
)

// maxTries bounds the compare-and-sets of one change.
const maxTries = 10

// ErrNoChange is returned by a change function that finds nothing to do; Change then returns the row as it stands.
var ErrNoChange = errors.New("nothing to change")

// Changer changes jobs.
type Changer struct {
	Jobs    jobstore.Jobs
	Records dedupe.Records
	// Answers tells that the end of a change is its acknowledgement: it is waited for until nothing can begin any more that the
	// change stops, which takes longer only right after a server of the hot tier failed over.
	Answers bool
}

// Change applies fn to the job's row and stores it with the next version, again from the start when another change
// came first, then writes the stop record. fn may be called more than once.
func (c Changer) Change(
	ctx context.Context, jobID string, fn func(ctx context.Context, j *job.Job) error,
) (job.Job, error) {
	for range maxTries {
		j, err := c.Jobs.Get(ctx, jobID)
		if err != nil {
			return job.Job{}, err
		}
		err = fn(ctx, &j)
		if errors.Is(err, ErrNoChange) {
			// Whoever changed the row may not have been answered yet: what this answer rests on must be as durable as a
			// change. The stop record is written all the same, because they may have died before they did.
			standing, err := c.Jobs.GetSerial(ctx, jobID)
			if err != nil {
				return job.Job{}, err
			}
			if standing.Version != j.Version {
				continue
			}
			return j, c.stop(ctx, &j)
		}
		if err != nil {
			return job.Job{}, err
		}
		j.Version++
		err = c.Jobs.Replace(ctx, j)
		if errors.Is(err, jobstore.ErrConflict) {
			continue
		}
		if err != nil {
			return job.Job{}, err
		}
		return j, c.stop(ctx, &j)
	}
	return job.Job{}, fmt.Errorf("lifecycle: %d changes came between: %w", maxTries, jobstore.ErrConflict)
}

// stop writes the stop record. Where a server was replaced a moment ago, executors that have not noticed may still make their last
// checks there, against the record of before.
func (c Changer) stop(ctx context.Context, j *job.Job) error {
	holdsIn, err := c.Records.SetStop(ctx, j.ID, j.State())
	if err != nil || holdsIn == 0 || !c.Answers {
		return err
	}
	return run.Sleep(ctx, holdsIn)
}

// Pause pauses an active job; pausing a paused one changes nothing. What lies behind now is left to the resume, whose definition
// begins there: an instant that was called before the pause reached its row is known by its outcome then.
func (c Changer) Pause(ctx context.Context, jobID string, now time.Time) (job.Job, error) {
	return c.Change(ctx, jobID, func(_ context.Context, j *job.Job) error {
		if j.Status != job.Active {
			return ErrNoChange
		}
		j.Status = job.Paused
		// Never before the definition that it pauses, which may have been made by a clock that is ahead.
		j.PausedAt = job.Later(job.Later(j.PausedAt, j.Definition.EffectiveAt), now)
		j.UpdatedAt = now
		return nil
	})
}
