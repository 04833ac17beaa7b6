package reads

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/schedule"
)

// explain completes occurrences: it finds out what becomes of those that have no end on record, and says of each in words how it came
// about.
func (a *account) explain(ctx context.Context, items []*Occurrence) error {
	var asked []*Occurrence
	for _, o := range items {
		switch {
		case o.State != "" && ended(o.State):
		case o.State == "" && o.NominalAt.After(a.now) && a.undecided(o):
			o.State = statePaused
		case o.State == "" && o.ScheduledFor.After(a.now):
			o.State = statePlanned
			if a.j.Status != job.StatusActive { // its jitter moves it beyond the stop
				o.Reason = fmt.Sprintf("It is not due yet, and will not be called: the job is %s.", a.j.Status)
			}
		default:
			asked = append(asked, o)
		}
	}
	if len(asked) > 0 {
		if err := a.ask(ctx, asked); err != nil {
			return err
		}
	}
	stops := a.j.State()
	for _, o := range items {
		if o.Reason == "" {
			o.Reason = reasons[o.State]
		}
		if word := skips[o.Disposition]; word != "" {
			o.Reason = word
		}
		if o.State == "cancelled" && a.displaced(o) {
			o.Reason = "Cancelled by the overlap_policy: the execution of a later instant took its place."
		}
	}
	if err := a.ofOverlaps(ctx, items); err != nil {
		return err
	}
	for _, o := range items {
		with := a.j.Status == job.StatusCancelled && o.State == "pending"
		if (with || stops.Stops(o.ExecutionID) || a.displaced(o)) && o.Reason != ending && (o.State == "pending" || o.State == "dispatched" || o.State == "running") {
			o.Reason = stopping
		}
	}
	return nil
}

// undecided reports whether a resume will decide about an occurrence of which nothing is on record.
func (a *account) undecided(o *Occurrence) bool {
	return a.j.Status == job.StatusPaused && o.NominalAt.After(a.j.PausedAt)
}

func ended(state string) bool {
	return (&Execution{State: state}).Ended()
}

// ask looks for occurrences that are due and have no end on record: in the hot tier, and among the entries.
func (a *account) ask(ctx context.Context, list []*Occurrence) error {
	keys := make([]attempts.Key, len(list))
	locators := make([]job.Locator, len(list))
	for i, o := range list {
		locators[i] = a.locator(o.NominalAt, o.ScheduledFor, o.DefinitionID)
		keys[i] = attempts.Key{ExecutionID: locators[i].ExecutionID, Attempt: o.Attempts + 1}
	}
	// A refusal is in the hot tier before its row says that the occurrence is not called, which says no more than that.
	rows, err := a.rs.Pending.Rows(ctx, locators)
	if err != nil {
		return fmt.Errorf("read entries of job %s: %w", a.j.ID, err)
	}
	records, err := a.rs.Outcomes.Lookup(ctx, keys)
	if err != nil {
		return fmt.Errorf("look up executions of job %s: %w", a.j.ID, err)
	}
	// The hot tier knows nothing of those that are lost, and their entries are not where they are written first. Those put off wait for their
	// target, unless the entry of another definition decided about them since.
	var lost, putOff []*Occurrence
	for i, o := range list {
		row, found := rows[locators[i]]
		a.decided(&row)
		switch {
		case records[i].Outcome != nil || records[i].Alive(a.now):
			a.ofHot(o, &records[i])
		case o.State != "":
		case a.undecided(o):
			o.State = statePaused
			continue
		case a.inLine[keys[i].ExecutionID] != "":
			o.State, o.GaveWayTo = "pending", a.inLine[keys[i].ExecutionID]
		case found && row.DeferredTo.IsZero() && !row.Done && row.Decision != nil && row.Decision.Waits():
			if o.State = "pending"; row.Queues {
				o.GaveWayTo = a.gaveWay(row.Decision.GaveWayTo)
			}
		case found && !row.DeferredTo.IsZero(), !found && a.now.Before(a.deferred[keys[i].ExecutionID].Add(comesWithin)):
			o.State, o.Reason, putOff = "pending", deferred, append(putOff, o)
		case found && (row.Done || row.Decision != nil && a.mayBeRefused(row.Decision)):
			o.State, o.Reason = "pending", ending
		case found && row.Decision != nil && !row.Decision.Fire:
			o.State, o.Disposition, o.GaveWayTo = "skipped", row.Decision.Unfired(), a.gaveWay(row.Decision.GaveWayTo)
		case found:
			o.State = "pending"
		default:
			lost = append(lost, o)
			continue
		}
		o.ExecutionID = keys[i].ExecutionID
	}
	if err := a.find(ctx, lost, putOff); err != nil {
		return err
	}
	return a.held(ctx, list)
}

// mayBeRefused reports whether a decision not to call an occurrence may be about a stop of its job, be that over by now. Without a run of
// instants it looks, by the row alone, like one about an occurrence that was missed.
func (a *account) mayBeRefused(d *job.Decision) bool {
	return d.Refuses() || !d.Fire && d.GaveWayTo.IsZero() && a.j.Status != job.StatusActive
}

// decided notes the run of instants that a decision on an entry skips. The event that tells of it may not be on record yet.
func (a *account) decided(row *job.PendingRow) {
	if d := row.Decision; d != nil && d.Skipped != nil {
		run := &skippedRun{From: d.Skipped.From, To: d.Skipped.To, Count: d.Skipped.Count, definitionID: row.DefinitionID}
		a.runs = append(a.runs, &Execution{NominalAt: run.From, State: "skipped", Disposition: d.Disposition, Skipped: run})
	}
}

// gaveWay returns the execution of an instant, "" if that is zero.
func (a *account) gaveWay(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return job.ScheduleExecutionID(a.j.ID, at)
}

// comesWithin is how long after the instant at which a deferred fire comes again its deferral still shows that it waits.
const comesWithin = 5 * time.Minute

// locator returns where the entry of an occurrence is written, unless the one before it came late.
func (a *account) locator(nominalAt, due time.Time, definitionID string) job.Locator {
	return job.Locator{
		Partition: bucket.Partition(a.j.ID, a.rs.Partitions), Minute: job.Minute(due), DueAt: due,
		ExecutionID: job.ScheduleExecutionID(a.j.ID, nominalAt), Attempt: 1, DefinitionID: definitionID,
	}
}

// ofHot shows what the hot tier knows of an attempt: it runs, or has ended so recently that the history does not have it yet.
func (a *account) ofHot(o *Occurrence, rec *attempts.Record) {
	if rec.Alive(a.now) {
		if o.State = "dispatched"; rec.Running {
			o.State = "running"
		}
		o.Reason = ""
		return
	}
	out := rec.Outcome
	if !out.GaveWayTo.IsZero() {
		o.GaveWayTo = a.gaveWay(out.GaveWayTo)
	}
	if o.Disposition == "" {
		o.Disposition = out.Disposition
	}
	o.skippedAt = out.Timeline.Completed
	switch out.Kind {
	case job.OutcomeSucceeded:
		o.State, o.Reason = "succeeded", ""
	case job.OutcomeSkipped:
		o.State = "skipped"
	case job.OutcomeCancelled:
		o.State, o.Reason = "cancelled", ""
	default:
		o.State, o.Reason = "retrying", fmt.Sprintf("%s ended with %s; what follows comes on record in a moment.", capital(attemptOf(o.Attempts+1)), out.Kind)
	}
	o.Attempts++
}

// find tells apart the occurrences that are neither on record nor where their entries are written first. An entry writes the next one when
// it is taken, so most of them come after one that waits: the first after what is on record. It finds out, too, which of those put off were
// skipped.
func (a *account) find(ctx context.Context, lost, putOff []*Occurrence) error {
	oldest := endOfPlans
	for _, list := range [][]*Occurrence{lost, putOff} {
		if n := len(list); n > 0 && list[n-1].NominalAt.Before(oldest) {
			oldest = list[n-1].NominalAt
		}
	}
	if oldest.Equal(endOfPlans) {
		return nil
	}
	// Others may be on record between an instant and the beginning of the run with which it was skipped.
	before, _, _, err := a.rs.executions(ctx, a.j, jobstore.Cursor{NominalAt: oldest}, a.now.Add(-jobstore.HistoryTTL), recordsRead)
	if err != nil {
		return err
	}
	for _, x := range before {
		if x.Skipped != nil {
			a.runs = append(a.runs, x)
		}
	}
	for _, o := range putOff {
		if run := covering(a.runs, o); run != nil {
			o.State, o.Disposition, o.Reason = run.State, run.Disposition, ""
		}
	}
	if len(lost) == 0 {
		return nil
	}
	first := a.after(before, oldest)
	w := waiting{at: map[string]string{}, heads: map[string]time.Time{}, whole: true}
	row, err := a.rs.Pending.Row(ctx, first)
	if err != nil && !errors.Is(err, jobstore.ErrNotFound) {
		return fmt.Errorf("read an entry of job %s: %w", a.j.ID, err)
	}
	if err == nil {
		w.note(a, &row)
	}
	if slices.ContainsFunc(lost, func(o *Occurrence) bool { return !w.follows(o) && covering(a.runs, o) == nil }) {
		if err := a.search(ctx, first, &w); err != nil {
			return err
		}
	}
	return a.tell(ctx, lost, &w)
}

// tell says what became of occurrences that are neither on record nor where their entries are written first, by what waits.
func (a *account) tell(ctx context.Context, lost []*Occurrence, w *waiting) error {
	for _, o := range lost {
		id := job.ScheduleExecutionID(a.j.ID, o.NominalAt)
		reason, waits := w.at[id]
		run := covering(a.runs, o)
		if run == nil && !waits && !w.follows(o) {
			var err error
			if run, err = a.ofAnother(ctx, o); err != nil {
				return err
			}
		}
		switch {
		case run != nil:
			o.State, o.Disposition = run.State, run.Disposition
		case waits:
			o.State, o.ExecutionID, o.Reason = "pending", id, reason
		case w.follows(o):
			o.State, o.Reason = "pending", "It comes after one that was not called yet."
		case !w.whole:
			o.State, o.Reason = stateUnknown, "Nothing is on record of it, and too much waits at present to tell whether it waits, too."
		default:
			o.State = stateUnknown
		}
	}
	return nil
}

// ofAnother returns the run with which another definition skipped an instant; nil if there is none. A worker that had not seen an update skips
// for the former definition what another one skips for the new one. Where both runs begin at one instant they have one id, and only one of them
// is on record.
func (a *account) ofAnother(ctx context.Context, o *Occurrence) (*Execution, error) {
	at := o.NominalAt
	for _, x := range a.runs {
		if x.Skipped.definitionID == o.DefinitionID || at.Before(x.Skipped.From) || at.After(x.Skipped.To) {
			continue
		}
		plan, err := a.planOf(ctx, x.Skipped.definitionID)
		if err != nil {
			return nil, err
		}
		if plan == nil {
			continue
		}
		if first, ok := plan.First(at); ok && first.Equal(at) {
			return x, nil
		}
	}
	return nil, nil
}

// planOf returns what a definition of the job names; nil if it is not kept any more.
func (a *account) planOf(ctx context.Context, id string) (*schedule.Plan, error) {
	plan, known := a.plans[id]
	if known {
		return plan, nil
	}
	d, err := a.j.Definition, error(nil)
	if id != d.ID {
		d, _, err = a.rs.Jobs.Definition(ctx, a.j.ID, id)
	}
	switch {
	case err == nil:
		if plan, err = schedule.Compile(d.Schedule, a.j.ID); err != nil {
			return nil, err
		}
	case !errors.Is(err, jobstore.ErrNotFound):
		return nil, fmt.Errorf("read a definition of job %s: %w", a.j.ID, err)
	}
	if a.plans == nil {
		a.plans = map[string]*schedule.Plan{}
	}
	a.plans[id] = plan
	return plan, nil
}

// after returns the locator of the first occurrence after the newest one that is on record, which is oldest or lies before it.
func (a *account) after(before []*Execution, oldest time.Time) job.Locator {
	last := time.Time{}
	for _, x := range before {
		if x.Trigger == job.TriggerSchedule {
			if last = x.NominalAt; x.Skipped != nil {
				last = x.Skipped.To
			}
			break
		}
	}
	for _, s := range slices.Backward(a.series) {
		if at, ok := s.series.Plan.First(job.Later(last.Add(time.Millisecond), s.series.Def.EffectiveAt)); ok && at.Before(s.until) && at.Before(oldest) {
			return a.locator(at, s.series.Plan.ScheduledFor(at), s.series.Def.ID)
		}
	}
	return a.locator(oldest, oldest, "")
}

// waiting is what waits of a job's occurrences: the executions that an entry names, with a reason if there is one to give, and the newest
// instant of each definition that a first entry names, from which on the others follow. whole is set if everything was looked at.
type waiting struct {
	at    map[string]string
	heads map[string]time.Time
	whole bool
}

// follows reports whether an occurrence comes after one of its definition that waits.
func (w *waiting) follows(o *Occurrence) bool {
	head, ok := w.heads[o.DefinitionID]
	return ok && !o.NominalAt.Before(head)
}

// waitRows bounds the rows that one search for a job's entries reads.
const waitRows = 5000

// note takes account of an entry of the job's schedule.
func (w *waiting) note(a *account, row *job.PendingRow) {
	a.decided(row)
	_, known := w.at[row.ExecutionID]
	switch {
	case row.InLine() && !row.Done:
		w.at[row.ExecutionID] = inLine
	case row.Chained && !row.Done, !row.DeferredTo.IsZero():
		w.at[row.ExecutionID] = deferred
	case row.Done && !known:
		w.at[row.ExecutionID] = ending
	case !row.Done:
		if w.at[row.ExecutionID] = ""; row.FirstOfSchedule() && row.NominalAt.After(w.heads[row.DefinitionID]) {
			w.heads[row.DefinitionID] = row.NominalAt
		}
	}
}

// search looks for the job's entries in the open buckets from the minute of an entry on.
func (a *account) search(ctx context.Context, first job.Locator, w *waiting) error {
	rows := 0
	err := a.rs.findOpen(ctx, first.Partition, first.Minute, math.MaxInt64, func(row *job.PendingRow) bool {
		if row.JobID == a.j.ID && row.Trigger == job.TriggerSchedule {
			w.note(a, row)
		}
		rows++
		return rows == waitRows
	})
	w.whole = errors.Is(err, jobstore.ErrNotFound)
	if w.whole || errors.Is(err, errGaveUp) {
		return nil
	}
	return err
}

// held says of what is pending that it is held, if it is.
func (a *account) held(ctx context.Context, list []*Occurrence) error {
	_, hold, err := a.rs.DispatchHold(ctx)
	if err != nil || !hold.Holds(a.j.Tenant, a.j.Labels) {
		return err
	}
	for _, o := range list {
		if o.State == "pending" {
			o.Reason = "It is due, and dispatch is held."
		}
	}
	return nil
}
