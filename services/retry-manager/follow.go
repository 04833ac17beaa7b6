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
	"github.com/minutehand/minutehand/libs/run"
)

// lateWrite is how long after it was claimed what follows an execution may be written: its bucket is open for longer.
const lateWrite = 2 * time.Minute

// claimsAgain bounds how often what follows an execution is claimed once more, because each time it was not written in time. After that it is
// written unclaimed: then it may have several rows, under one execution id.
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

// followsAtOnce is of how many executions at once what follows them is claimed and written.
const followsAtOnce = 16

// family is who follows a job.
type family struct {
	list []dependents.Dependent
	rows map[string]*job.Job
}

// follow writes the entries of what follows the executions that have ended. They are claimed first, so that another settler of the same events
// writes the same rows. It costs a batch without such ends nothing.
func (s *Service) follow(ctx context.Context, b *batch) error {
	store := dependents.Store{Jobs: s.deps.Jobs, Settings: s.deps.Settings}
	families := map[string]family{}
	for i := range b.endings {
		id := b.endings[i].event.Entry.JobID
		if _, known := families[id]; known {
			continue
		}
		list, err := store.Of(ctx, id)
		if err != nil {
			return err
		}
		rows, err := store.Rows(ctx, id, list, s.deps.Clock.Now())
		if err != nil {
			return err
		}
		families[id] = family{list, rows}
	}
	return run.Each(len(b.endings), followsAtOnce, func(i int) error {
		return s.followOne(ctx, store, &b.endings[i], families[b.endings[i].event.Entry.JobID])
	})
}

// followOne writes the entries of what follows one execution.
func (s *Service) followOne(ctx context.Context, store dependents.Store, end *ending, f family) error {
	var entries []job.Entry
	var claimedAt time.Time
	for _, d := range f.list {
		j := f.rows[d.JobID]
		if j == nil || j.Tenant != end.event.Entry.Tenant {
			continue
		}
		e, err := s.followBy(ctx, store, end, j)
		if err != nil {
			return err
		}
		if e != nil {
			entries = append(entries, *e)
			if claimedAt.IsZero() || e.DueAt.Before(claimedAt) {
				claimedAt = e.DueAt
			}
		}
	}
	if len(entries) == 0 {
		return nil
	}
	if err := s.deps.Pending.Put(ctx, entries); err != nil {
		return err
	}
	if s.deps.Clock.Since(claimedAt) > lateWrite {
		return errLate
	}
	s.metrics.followed.Add(float64(len(entries)))
	return s.addNear(ctx, entries)
}

// followBy returns the entry by which a job follows an execution; nil if it does not, or somebody has written it.
func (s *Service) followBy(ctx context.Context, store dependents.Store, end *ending, j *job.Job) (*job.Entry, error) {
	e := &end.event.Entry
	d, err := store.InForce(ctx, j, e.NominalAt)
	if err != nil || d == nil {
		return nil, err
	}
	on, named := dependents.Follows(d, e.JobID)
	if !named || !on.Takes(end.succeeded) {
		return nil, nil
	}
	chain := 1
	if e.Note != nil {
		chain += e.Note.Chain
	}
	if chain > job.MaxChain {
		s.metrics.chainsCut.Inc()
		s.deps.Logger.Error("100 executions have followed one another, and nothing follows the last: their jobs follow each other in a circle, or are too many",
			"job_id", j.ID, "execution_id", e.ExecutionID)
		return nil, nil
	}
	now := job.Instant(s.deps.Clock.Now())
	claim, err := s.claim(ctx, store, j, d, end, now)
	if err != nil || claim == nil {
		return nil, err
	}
	if claim.DefinitionID != d.ID { // another settler claimed it while another one was in force
		if d, err = s.claimed(ctx, store, j, claim); err != nil || d == nil {
			return nil, err
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
	next = job.NewEntry(next, claim.At)
	return &next, nil
}

// claimed returns the definition of a claim. It may be in the row by now, if the job was changed since that was read.
func (s *Service) claimed(ctx context.Context, store dependents.Store, j *job.Job, c *dependents.Claim) (*job.Definition, error) {
	d, err := store.Definition(ctx, j, c.DefinitionID)
	if err != nil || d != nil {
		return d, err
	}
	row, err := s.deps.Jobs.GetSerial(ctx, j.ID)
	if errors.Is(err, jobstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if d, err = store.Definition(ctx, &row, c.DefinitionID); err == nil && d == nil {
		s.deps.Logger.Error("the definition of an execution that follows another is no longer kept", "job_id", j.ID, "execution_id", c.ExecutionID)
	}
	return d, err
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
	return &c, nil
}

// surelyOpen is how long after its instant a bucket is open for certain. Later a loader may have found it empty, and be about to close it.
const surelyOpen = jobstore.ClosesAfter - time.Minute

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
	if err == nil && l.Minute >= low && s.deps.Clock.Since(c.At) < surelyOpen {
		return true, nil
	}
	if err != nil && !errors.Is(err, jobstore.ErrNotFound) {
		return false, err
	}
	events, err := s.deps.History.Execution(ctx, c.ExecutionID)
	return len(events) > 0, err
}
