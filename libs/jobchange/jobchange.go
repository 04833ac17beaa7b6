// Package jobchange changes a job so that the change holds from the moment at which it is acknowledged, and becomes known. It writes
// the entry that tells of the change, then the row, by compare-and-set on its version, then the stop record, by which every attempt is
// judged when it begins. A caller that acknowledges a change calls Await first.
//
// A crash after the entry leaves one that workers drop when the grace is over (services/README.md). A crash after the row leaves a
// change that was never acknowledged, but still takes effect as entries are judged by the row, and becomes an event. An acknowledged
// change outlives the loss of the hot tier: fires of an older incarnation are judged by the row again.
package jobchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
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

// ErrCancelled is returned where a job is cancelled, which is final.
var ErrCancelled = errors.New("the job is cancelled")

// Changer changes jobs.
type Changer struct {
	Jobs  jobstore.Jobs
	Stops attempts.Stops
	Recorder
}

// Edit is a change that somebody makes.
type Edit struct {
	// Operation and Object are those of [job.Change].
	Operation, Object string
	By                job.Author
	// Most is how many changes of the row may not be published yet; 0 stands for [job.MaxChanges].
	Most int
	// Apply changes a row, except for its version and its changes. It may be called more than once.
	Apply func(ctx context.Context, j *job.Job) error
	// First returns the entry with which a row's new definition begins, written at an instant; nil for an edit without one. It may be
	// called more than once, after Apply.
	First func(j *job.Job, written time.Time) (job.Entry, bool)
}

// Changed is a job whose change is stored.
type Changed struct {
	job.Job
	// Entries were written before the row, and are to be added to their hot buckets.
	Entries []job.Entry
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

// Change applies an edit to the row of a tenant's job, stores it with the next version, and then writes the stop record. If another
// change came first, it starts over. Another tenant's job is jobstore.ErrNotFound.
func (c Changer) Change(ctx context.Context, tenant job.Tenant, jobID string, edit Edit) (Changed, error) {
	for range maxTries {
		j, err := c.Jobs.Get(ctx, jobID)
		if err == nil && j.Tenant != tenant {
			err = jobstore.ErrNotFound
		}
		if err != nil {
			return Changed{}, err
		}
		err = edit.Apply(ctx, &j)
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
			return c.stop(ctx, &j, nil)
		}
		if err != nil {
			return Changed{}, err
		}
		j.Version++
		entries, err := c.announce(ctx, &j, &edit)
		if err != nil {
			return Changed{}, err
		}
		err = c.Jobs.Replace(ctx, j)
		if errors.Is(err, jobstore.ErrConflict) {
			continue
		}
		if err != nil {
			return Changed{}, err
		}
		return c.stop(ctx, &j, entries)
	}
	return Changed{}, fmt.Errorf("change a job: %d changes came between: %w", maxTries, jobstore.ErrConflict)
}

// announce writes the entries of an edit, and names the change in the row that is about to be written.
func (c Changer) announce(ctx context.Context, j *job.Job, edit *Edit) ([]job.Entry, error) {
	var began time.Time
	change := job.Change{Operation: edit.Operation, Object: edit.Object, Version: j.Version}
	return c.write(ctx, j.ID, &j.Changes, cmp.Or(edit.Most, job.MaxChanges), func(id string, l job.Locator) []job.Entry {
		entries := []job.Entry{job.NewChange(l, j.ID, j.Tenant, change, edit.By)}
		if edit.First == nil {
			return entries
		}
		first, ok := edit.First(j, l.DueAt)
		if !ok {
			return entries
		}
		if began.IsZero() {
			began = l.DueAt
		} else if m := job.NewEntry(first, began).Minute; m != first.Minute {
			first.Repeats = m // a decision about that entry holds for this one too
		}
		return append(entries, first)
	}, j.Version)
}

// stop writes the stop record.
func (c Changer) stop(ctx context.Context, j *job.Job, entries []job.Entry) (Changed, error) {
	holdsIn, err := c.Stops.SetStop(ctx, j.ID, j.State())
	return Changed{*j, entries, holdsIn, c.Stops}, err
}

// Pause pauses an active job; pausing a paused one changes nothing, and a cancelled one is ErrCancelled. Instants after now are left to the resume, whose definition
// begins there: if one of them was called before the pause reached its row, its outcome shows that by then.
func (c Changer) Pause(ctx context.Context, tenant job.Tenant, jobID string, by job.Author) (Changed, error) {
	now, most := job.Instant(c.Clock.Now()), job.MaxChanges
	if by.Role == job.SystemRole {
		most = math.MaxInt
	}
	return c.Change(ctx, tenant, jobID, Edit{Operation: "pauseJob", By: by, Most: most, Apply: func(_ context.Context, j *job.Job) error {
		switch j.Status {
		case job.StatusCancelled:
			return ErrCancelled
		case job.StatusPaused:
			return ErrNoChange
		}
		j.Status = job.StatusPaused
		// Never before the start of the paused definition, which may have been made by a clock that is ahead. What a resume brings back was
		// not displaced.
		j.PausedAt = job.Later(job.Later(job.Later(j.PausedAt, j.Definition.EffectiveAt), j.StoppedBefore), now)
		j.UpdatedAt = now
		return nil
	}})
}

// Cancel ends a job for good at an instant; with hide it also disappears from reads. It is ErrNoChange if that was done before.
func Cancel(j *job.Job, now time.Time, hide bool) error {
	if j.Status == job.StatusCancelled && (j.Deleted || !hide) {
		return ErrNoChange
	}
	if j.Status != job.StatusCancelled {
		j.EndsAt = now
		if j.Status == job.StatusPaused { // instants after a pause get their dispositions from a resume, and there will be none
			j.EndsAt = j.PausedAt.Add(time.Millisecond)
		}
	}
	j.Status, j.Deleted, j.UpdatedAt = job.StatusCancelled, j.Deleted || hide, now
	return nil
}
