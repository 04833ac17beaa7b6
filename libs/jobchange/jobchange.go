// Package jobchange changes a job so that the change holds from the moment at which it is acknowledged. It changes first the row,
// by compare-and-set on its version, then the stop record, by which every attempt is judged when it begins. A caller that
// acknowledges a change calls Await first.
//
// A crash between the two leaves a change that was never acknowledged, but still takes effect as entries are judged by the row. An
// acknowledged change outlives the loss of the hot tier: fires of an older incarnation are judged by the row again.
package jobchange

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
)

// maxTries bounds the compare-and-sets of one change.
const maxTries = 10

// ErrNoChange is returned by a change function that has nothing to do; Change then returns the row as it stands.
var ErrNoChange = errors.New("nothing to change")

// Changer changes jobs.
type Changer struct {
	Jobs  jobstore.Jobs
	Stops attempts.Stops
}

// Changed is a job whose change is stored.
type Changed struct {
	job.Job
	// HoldsIn is how long it takes until the change holds: 0 except around a failover of the hot tier.
	HoldsIn time.Duration
	stops   attempts.Stops
}

// Await returns when nothing that the change stops can begin any more. By then a server in whose place a replica was promoted has
// stopped. That server may have been the one that stored the stop record, so Await stores the record once more.
func (c *Changed) Await(ctx context.Context) error {
	if c.HoldsIn == 0 {
		return nil
	}
	if err := run.Sleep(ctx, c.HoldsIn); err != nil {
		return err
	}
	_, err := c.stops.SetStop(ctx, c.ID, c.State())
	return err
}

// Change applies fn to the row of a tenant's job, stores it with the next version, and then writes the stop record. If another change
// came first, it starts over. fn may be called more than once. Another tenant's job is jobstore.ErrNotFound.
func (c Changer) Change(
	ctx context.Context, tenant job.Tenant, jobID string, fn func(ctx context.Context, j *job.Job) error,
) (Changed, error) {
	for range maxTries {
		j, err := c.Jobs.Get(ctx, jobID)
		if err == nil && j.Tenant != tenant {
			err = jobstore.ErrNotFound
		}
		if err != nil {
			return Changed{}, err
		}
		err = fn(ctx, &j)
		if errors.Is(err, ErrNoChange) {
			// The client that changed the row may not have been answered yet, and this answer must be as durable as a change. The stop
			// record is written all the same, because the process that changed the row may have died before it did.
			standing, err := c.Jobs.GetSerial(ctx, jobID)
			if err != nil {
				return Changed{}, err
			}
			if standing.Version != j.Version {
				continue
			}
			return c.stop(ctx, &j)
		}
		if err != nil {
			return Changed{}, err
		}
		j.Version++
		err = c.Jobs.Replace(ctx, j)
		if errors.Is(err, jobstore.ErrConflict) {
			continue
		}
		if err != nil {
			return Changed{}, err
		}
		return c.stop(ctx, &j)
	}
	return Changed{}, fmt.Errorf("change a job: %d changes came between: %w", maxTries, jobstore.ErrConflict)
}

// stop writes the stop record.
func (c Changer) stop(ctx context.Context, j *job.Job) (Changed, error) {
	holdsIn, err := c.Stops.SetStop(ctx, j.ID, j.State())
	return Changed{*j, holdsIn, c.Stops}, err
}

// Pause pauses an active job; pausing a paused one changes nothing. Instants after now are left to the resume, whose definition
// begins there: if one of them was called before the pause reached its row, its outcome shows that by then.
func (c Changer) Pause(ctx context.Context, tenant job.Tenant, jobID string, now time.Time) (Changed, error) {
	return c.Change(ctx, tenant, jobID, func(_ context.Context, j *job.Job) error {
		if j.Status != job.StatusActive {
			return ErrNoChange
		}
		j.Status = job.StatusPaused
		// Never before the start of the paused definition, which may have been made by a clock that is ahead.
		j.PausedAt = job.Later(job.Later(j.PausedAt, j.Definition.EffectiveAt), now)
		j.UpdatedAt = now
		return nil
	})
}
