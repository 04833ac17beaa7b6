package schedules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/schedule"
)

// subject is a job whose schedule is looked at.
type subject struct {
	job    *job.Job
	series *occurrence.Series
	// seen is up to which instant rows of the definition were seen from which nothing follows any more.
	seen time.Time
	// alive is set if it has an entry from which it goes on.
	alive bool
}

func (s *subject) partition(of int) int { return bucket.Partition(s.job.ID, of) }

// at returns where the entry of an instant lies, unless the one before it was late.
func (s *subject) at(instant time.Time, partitions int) job.Locator {
	return s.series.Locator(s.partition(partitions), instant, s.series.Plan.ScheduledFor(instant))
}

// look looks for the next entries of jobs, and mends what is not there.
func (a *Audit) look(ctx context.Context, jobs []job.Job) error {
	subjects, err := a.subjects(ctx, jobs)
	if err != nil {
		return err
	}
	a.Metrics.looked.Add(float64(len(subjects)))
	if subjects, err = a.without(ctx, subjects); err != nil || len(subjects) == 0 {
		return err
	}
	if err := run.Sleep(ctx, a.LookAgain); err != nil {
		return err
	}
	if subjects, err = a.without(ctx, subjects); err != nil || len(subjects) == 0 {
		return err
	}
	byPartition := map[int][]*subject{}
	for _, s := range subjects {
		p := s.partition(a.Partitions)
		byPartition[p] = append(byPartition[p], s)
	}
	for _, partition := range slices.Sorted(maps.Keys(byPartition)) {
		began := a.Clock.Now()
		lost, err := a.search(ctx, partition, byPartition[partition])
		if err == nil && len(lost) > 0 && a.Clock.Since(began) > lateLook {
			err = errLate
		}
		if err == nil {
			err = a.mend(ctx, lost)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// subjects returns the jobs whose schedule names an instant ahead, and that nobody holds.
func (a *Audit) subjects(ctx context.Context, jobs []job.Job) (subjects []*subject, err error) {
	var hold job.DispatchHold
	raw, err := a.Settings.Setting(ctx, jobstore.SettingDispatchHold)
	if err == nil && raw != nil {
		err = json.Unmarshal(raw, &hold)
	}
	if err != nil {
		return nil, fmt.Errorf("read what is held: %w", err)
	}
	now := a.Clock.Now()
	for i := range jobs {
		j := &jobs[i]
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if j.Deleted || j.Status != job.StatusActive {
			continue
		}
		if hold.Holds(j.Tenant, j.Labels) {
			a.unsure = a.unsure || j.Definition.Schedule.Timezone != ""
			continue
		}
		plan, err := schedule.Compile(j.Definition.Schedule, j.ID)
		if err != nil {
			a.Logger.Warn("a schedule cannot be read", "job_id", j.ID, "error", err) // a later release wrote it
			a.unsure = true
			continue
		}
		s := &subject{job: j, series: &occurrence.Series{JobID: j.ID, Tenant: j.Tenant, Def: &j.Definition, Plan: plan}}
		if _, ok := s.series.NextRun(now); ok {
			subjects = append(subjects, s)
		}
	}
	return subjects, nil
}

// without returns those of subjects of which the entry is not there from which a schedule in time goes on: that of the next instant, or of the
// one before while its jitter is not over.
func (a *Audit) without(ctx context.Context, subjects []*subject) (missing []*subject, err error) {
	now := a.Clock.Now()
	var locators []job.Locator
	var asked []*subject
	for _, s := range subjects {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		next, ok := s.series.NextRun(now)
		if !ok {
			continue
		}
		if last, ok := s.series.Prev(next); ok && s.series.Plan.ScheduledFor(last).After(now) {
			next = last
		}
		locators, asked = append(locators, s.at(next, a.Partitions)), append(asked, s)
	}
	rows, err := a.Pending.Rows(ctx, locators)
	if err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}
	for i, s := range asked {
		if _, found := rows[locators[i]]; !found {
			missing = append(missing, s)
		}
	}
	return missing, nil
}

// search looks for the entries of jobs of one partition, and returns those from which the jobs that have none are to go on.
//
// An entry is marked as done after the one that follows from it was written, and that has a greater key. So whoever reads the rows in the
// order of their keys meets the entry from which a schedule goes on, or that lies beyond where he ends.
func (a *Audit) search(ctx context.Context, partition int, subjects []*subject) (lost []job.Entry, err error) {
	if a.full[partition] {
		a.undecided(subjects)
		return nil, nil
	}
	end, err := a.scan(ctx, partition, subjects)
	if errors.Is(err, errTooMuch) {
		a.full[partition] = true
		a.undecided(subjects)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	noted := a.noted()
	for _, s := range subjects {
		if s.alive {
			continue
		}
		there, err := a.ahead(ctx, s, end)
		if err != nil {
			return nil, err
		}
		if there {
			continue
		}
		row, err := a.Jobs.GetSerial(ctx, s.job.ID)
		if err != nil && !errors.Is(err, jobstore.ErrNotFound) {
			return nil, fmt.Errorf("read job %s: %w", s.job.ID, err)
		}
		if err != nil || row.Version != s.job.Version {
			continue // a change brings its own entry
		}
		e, ok := noted[s.job.ID]
		if ok = ok && e.DefinitionID == row.Definition.ID; !ok {
			if e, ok, err = a.revive(ctx, s); err != nil {
				return nil, err
			}
		}
		if ok {
			lost = append(lost, e)
		}
	}
	return lost, nil
}

// undecided notes that of some jobs it cannot be told whether they have their entry.
func (a *Audit) undecided(subjects []*subject) {
	a.Metrics.undecided.Add(float64(len(subjects)))
	a.unsure = true
}

// errTooMuch: a partition holds more rows than are read.
var errTooMuch = errors.New("too much waits")

// scan reads the open buckets of a partition up to the present minute, until it has met an entry of each subject, and notes what they hold of
// them. It returns the minute behind those that were read.
func (a *Audit) scan(ctx context.Context, partition int, subjects []*subject) (end int64, err error) {
	of := make(map[string]*subject, len(subjects))
	for _, s := range subjects {
		of[s.job.ID] = s
	}
	low, err := a.Pending.LowWater(ctx, partition)
	if err != nil {
		return 0, fmt.Errorf("read the low-water mark of partition %d: %w", partition, err)
	}
	rows := 0
	for minute := low; ; minute++ {
		end = job.Minute(a.Clock.Now()) + 1 + mostMoves // what was moved may be due before its minute
		next, ok, err := a.Pending.FirstOpen(ctx, partition, minute, end)
		if err != nil {
			return 0, fmt.Errorf("look for open buckets of partition %d: %w", partition, err)
		}
		if !ok {
			return end, nil
		}
		minute = next
		var after *job.Locator
		for {
			page, err := a.Pending.Scan(ctx, partition, minute, after, scanned)
			if err != nil {
				return 0, fmt.Errorf("read a bucket of partition %d: %w", partition, err)
			}
			for i := range page {
				if s := of[page[i].JobID]; s != nil {
					s.meet(&page[i])
				}
			}
			if !slices.ContainsFunc(subjects, func(s *subject) bool { return !s.alive }) {
				return end, nil
			}
			if rows += len(page); rows > a.MaxRows {
				return 0, errTooMuch
			}
			if len(page) < scanned {
				break
			}
			last := page[len(page)-1].Locator
			after = &last
		}
	}
}

// scanned is how many rows one read takes.
const scanned = 500

// meet notes a row of the subject's job.
func (s *subject) meet(row *job.PendingRow) {
	if row.Trigger != job.TriggerSchedule || row.DefinitionID != s.job.Definition.ID {
		return
	}
	if row.FirstOfSchedule() && !row.Chained && !row.Done {
		s.alive = true
		return
	}
	s.seen = job.Later(s.seen, row.NominalAt)
	if d := row.Decision; d != nil && d.Skipped != nil {
		s.seen = job.Later(s.seen, d.Skipped.To)
	}
}

// ahead reports whether a subject goes on from an entry in a minute at or behind end: that of the first instant there, or of the one before
// it, whose jitter may reach so far.
func (a *Audit) ahead(ctx context.Context, s *subject, end int64) (bool, error) {
	next, ok := s.series.NextRun(a.Clock.Now())
	for ok && job.Minute(s.series.Plan.ScheduledFor(next)) < end {
		next, ok = s.series.Plan.Next(next)
	}
	if ok {
		_, ok = s.series.NextRun(next)
	}
	if !ok {
		return true, nil // it is about to end
	}
	near := []time.Time{next}
	if after, ok := s.series.Plan.Next(next); ok { // other data may have the one before it already behind it
		near = append(near, after)
	}
	if last, ok := s.series.Plan.Prev(next); ok {
		near = append(near, last)
		rows, err := a.rows(ctx, s, last)
		if err != nil || slices.ContainsFunc(rows, isOpen) {
			return true, err
		}
	}
	rows, err := a.rows(ctx, s, next) // it was there before the one before it was done
	if err != nil || len(rows) > 0 {
		return true, err
	}
	return a.movedBy(ctx, s, near)
}

func isOpen(r job.PendingRow) bool { return !r.Done }

// movedBy reports whether the entry from which a subject goes on is that of an instant that other time zone data named in place of one of
// these.
func (a *Audit) movedBy(ctx context.Context, s *subject, near []time.Time) (bool, error) {
	if zone := s.job.Definition.Schedule.Timezone; zone == "" || zone == "UTC" {
		return false, nil
	}
	var locators []job.Locator
	for _, x := range occurrence.Elsewhere(s.series.Plan, near...) {
		locators = append(locators, s.series.Locator(s.partition(a.Partitions), x.Nominal, x.At))
	}
	rows, err := a.Pending.Rows(ctx, locators)
	if err != nil {
		return false, fmt.Errorf("read entries of job %s: %w", s.job.ID, err)
	}
	there := slices.ContainsFunc(slices.Collect(maps.Values(rows)), isOpen)
	if there {
		a.elsewhere++
	}
	return there, nil
}

// rows returns the rows of the entry of an instant: that in its own minute, and those of mends that were moved.
func (a *Audit) rows(ctx context.Context, s *subject, instant time.Time) (list []job.PendingRow, err error) {
	locators := make([]job.Locator, 1+mostMoves)
	for i := range locators {
		locators[i] = s.at(instant, a.Partitions)
		locators[i].Minute += int64(i)
	}
	found, err := a.Pending.Rows(ctx, locators)
	if err != nil {
		return nil, fmt.Errorf("read an entry of job %s: %w", s.job.ID, err)
	}
	return slices.Collect(maps.Values(found)), nil
}
