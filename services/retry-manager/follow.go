package retrymanager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/dependents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// lateWrite is how long after it was claimed what follows an execution may be written: its bucket is open for longer.
const lateWrite = 2 * time.Minute

// claimsAgain bounds how often what follows an execution is claimed once more, because each time it was not written in time.
const claimsAgain = 100

// errLate: what follows executions was written so late that its buckets may have closed. The batch is settled again, and looks for it.
var errLate = errors.New("what follows executions was written too late")

// ending is the end of an execution whose job is followed by others.
type ending struct {
	event     *job.Event
	succeeded bool
}

// end notes that an execution has ended, if others may follow. done says that its row is: then that was settled before, or nobody will settle it
// but this. Claims tell the two apart while they are remembered.
func (s *Service) end(b *batch, e *job.Event, done bool) {
	if !e.Entry.Followed || done && s.deps.Clock.Since(e.At) > jobstore.KeyTTL/2 {
		return
	}
	b.endings = append(b.endings, ending{e, !e.Outcome.Failed()})
}

// follow adds the entries of the executions that follow those which have ended. They are claimed first, so that whoever settles the same events
// again, or beside this one, writes the same rows. It costs a batch without such ends nothing.
func (s *Service) follow(ctx context.Context, b *batch) error {
	store := dependents.Store{Jobs: s.deps.Jobs, Settings: s.deps.Settings}
	type family struct {
		list []dependents.Dependent
		rows map[string]*job.Job
	}
	families := map[string]family{}
	for i := range b.endings {
		e := b.endings[i].event
		f, known := families[e.Entry.JobID]
		if !known {
			var err error
			if f.list, err = store.Of(ctx, e.Entry.JobID); err != nil {
				return err
			}
			if f.rows, err = store.Rows(ctx, e.Entry.JobID, f.list, s.deps.Clock.Now()); err != nil {
				return err
			}
			families[e.Entry.JobID] = f
		}
		for _, d := range f.list {
			if j := f.rows[d.JobID]; j != nil && j.Tenant == e.Entry.Tenant {
				if err := s.followBy(ctx, store, b, &b.endings[i], j); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// followBy adds the entry by which a job follows an execution, if it does.
func (s *Service) followBy(ctx context.Context, store dependents.Store, b *batch, end *ending, j *job.Job) error {
	e := &end.event.Entry
	d, err := store.InForce(ctx, j, e.NominalAt)
	if err != nil || d == nil {
		return err
	}
	on, named := dependents.Follows(d, e.JobID)
	if !named || !on.Takes(end.succeeded) {
		return nil
	}
	chain := 1
	if e.Note != nil {
		chain += e.Note.Chain
	}
	if chain > job.MaxChain {
		s.metrics.chainsCut.Inc()
		s.deps.Logger.Error("jobs follow each other in a circle, which ends here", "job_id", j.ID, "execution_id", e.ExecutionID)
		return nil
	}
	now := job.Instant(s.deps.Clock.Now())
	claim, err := s.claim(ctx, store, j, d, end, now)
	if err != nil || claim == nil {
		return err
	}
	if claim.DefinitionID != d.ID { // whoever claimed it found another one in force
		if d, err = store.Definition(ctx, j, claim.DefinitionID); err != nil || d == nil {
			return err
		}
	}
	nominal, _ := job.ParseExecutionID(claim.ExecutionID) // it was made by AfterExecutionID
	next := job.Entry{
		Locator: job.Locator{
			Partition: bucket.Partition(j.ID, s.cfg.Partitions), DueAt: claim.At, ExecutionID: claim.ExecutionID, Attempt: 1, DefinitionID: claim.DefinitionID,
		},
		JobID: j.ID, Tenant: j.Tenant, Trigger: job.TriggerAfter, NominalAt: nominal.NominalAt, ScheduledFor: nominal.NominalAt, WrittenAt: now,
		Trace: e.Trace, Note: &job.Note{Source: e.ExecutionID, Occurrence: e.Occurrence(), Chain: chain},
	}
	d.Mark(&next)
	b.entries = append(b.entries, job.NewEntry(next, claim.At))
	if b.claimedAt.IsZero() || claim.At.Before(b.claimedAt) {
		b.claimedAt = claim.At
	}
	s.metrics.followed.Inc()
	return nil
}

// claim returns the claim of the execution that is to be written: by a job that follows an execution, or an occurrence of which all of its
// parents had one. It is nil if there is nothing to write: a parent is missing, or somebody has written it.
func (s *Service) claim(
	ctx context.Context, store dependents.Store, j *job.Job, d *job.Definition, end *ending, now time.Time,
) (*dependents.Claim, error) {
	e := &end.event.Entry
	at, follows := e.Occurrence(), e.ExecutionID
	if d.Schedule.All {
		follows = fmt.Sprintf("%d", at.UnixMilli())
	}
	c := dependents.Claim{ExecutionID: job.AfterExecutionID(j.ID, follows, now), DefinitionID: d.ID, At: now}
	for range claimsAgain {
		var standing *dependents.Claim
		var err error
		switch {
		case d.Schedule.All && c.N == 0:
			standing, err = store.All(ctx, j.ID, d, at, e.JobID, end.succeeded, c)
		case d.Schedule.All:
			var x dependents.Claim
			x, err = store.Renew(ctx, j.ID, at, c)
			standing = &x
		default:
			var x dependents.Claim
			x, err = store.One(ctx, j, follows, c)
			standing = &x
		}
		if err != nil || standing == nil || *standing == c || s.deps.Clock.Since(standing.At) < lateWrite {
			return standing, err
		}
		if there, err := s.written(ctx, j, standing); err != nil || there {
			return nil, err
		}
		c = *standing
		c.At, c.N = now, standing.N+1
	}
	return nil, fmt.Errorf("what follows execution %s was claimed %d times, and never written", e.ExecutionID, claimsAgain)
}

// written reports whether the execution of an old claim is there: its row, or something that became of it. A row below the low-water mark is no
// proof, as nobody reads it. If its bucket is closed and the history is behind, it may be taken for missing: then it has a second row, under the
// same execution id.
func (s *Service) written(ctx context.Context, j *job.Job, c *dependents.Claim) (bool, error) {
	l := job.Locator{
		Partition: bucket.Partition(j.ID, s.cfg.Partitions), Minute: job.Minute(c.At), DueAt: c.At, ExecutionID: c.ExecutionID, Attempt: 1,
		DefinitionID: c.DefinitionID,
	}
	low, err := s.deps.Pending.LowWater(ctx, l.Partition)
	if err != nil {
		return false, err
	}
	_, err = s.deps.Pending.Row(ctx, l)
	if err == nil && l.Minute >= low {
		return true, nil
	}
	if err != nil && !errors.Is(err, jobstore.ErrNotFound) {
		return false, err
	}
	events, err := s.deps.History.Execution(ctx, c.ExecutionID)
	return len(events) > 0, err
}
