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
)

// explain completes occurrences: it finds out what becomes of those that have no end on record, and says of each in words how it came
// about.
func (a *account) explain(ctx context.Context, items []*Occurrence) error {
	var asked []*Occurrence
	for _, o := range items {
		switch {
		case o.State != "":
			if !ended(o.State) {
				asked = append(asked, o)
			}
		case a.j.Status == job.StatusPaused && o.NominalAt.After(a.j.PausedAt):
			o.State = statePaused
		case o.ScheduledFor.After(a.now):
			o.State = statePlanned
		default:
			asked = append(asked, o)
		}
	}
	if len(asked) > 0 {
		if err := a.ask(ctx, asked); err != nil {
			return err
		}
	}
	for _, o := range items {
		if o.Reason == "" {
			o.Reason = reasons[o.State]
		}
		if word := skips[o.Disposition]; word != "" {
			o.Reason = word
		}
	}
	return nil
}

// reasons says why an occurrence is in a state, where nothing more is known; skips, why it was not called.
var (
	reasons = map[string]string{
		statePlanned: "It is not due yet.",
		statePaused:  "The job is paused. What becomes of this instant is decided when the job is resumed.",
		"pending":    "It is due, and was not called yet.",
		"dispatched": "It is on its way to its target.",
		"running":    "Its target is being called.",
		"retrying":   "It was called in vain, and waits for its next attempt.",
		"succeeded":  "It was called, and has succeeded.",
		"cancelled":  "It was called, and cancelled while it ran or before its next attempt.",
		stateUnknown: "Nothing is on record of it: it is not pending, it was not called, and it was not skipped.",
	}
	skips = map[job.Disposition]string{
		job.DispositionSkippedMissed: "Skipped: it could not be called within the catch_up_window, and the missed_run_policy lets it go.",
		job.DispositionSkippedPaused: "Skipped: the job was paused.",
		job.DispositionCancelled:     "Not called: the job or this execution was cancelled before.",
	}
	deadReasons = map[string]string{
		"permanent":    "the failure was of a kind that another attempt does not mend",
		"max_attempts": "no attempt was left",
		"window":       "the next attempt would have come after the retry window",
	}
)

// ofAttempts says how an execution came to where it is; "" if its state says everything.
func ofAttempts(x *Execution) string {
	n := len(x.Attempts)
	switch {
	case n == 0:
		return ""
	case x.State == "succeeded":
		return fmt.Sprintf("It was called, and succeeded at %s.", attemptOf(n))
	case x.State == "retrying":
		return fmt.Sprintf("%s ended with %s; the next one follows.", capital(attemptOf(n)), x.Attempts[n-1].Outcome)
	case x.State == "dead":
		why := deadReasons[x.gaveUp]
		if why == "" {
			why = "it was given up"
		}
		return fmt.Sprintf("It was given up after %s, which ended with %s: %s.", attemptOf(n), x.Attempts[n-1].Outcome, why)
	}
	return ""
}

func attemptOf(n int) string {
	if n == 1 {
		return "the first attempt"
	}
	return fmt.Sprintf("attempt %d", n)
}

func capital(s string) string { return string(s[0]-'a'+'A') + s[1:] }

func ended(state string) bool {
	return (&Execution{State: state}).Ended()
}

// ask looks for occurrences that are due and have no end on record: in the hot tier, and among the entries.
func (a *account) ask(ctx context.Context, list []*Occurrence) error {
	keys := make([]attempts.Key, len(list))
	locators := make([]job.Locator, len(list))
	partition := bucket.Partition(a.j.ID, a.rs.Partitions)
	for i, o := range list {
		id := job.ScheduleExecutionID(a.j.ID, o.NominalAt)
		keys[i] = attempts.Key{ExecutionID: id, Attempt: o.Attempts + 1}
		locators[i] = job.Locator{
			Partition: partition, Minute: job.Minute(o.ScheduledFor), DueAt: o.ScheduledFor, ExecutionID: id, Attempt: 1, DefinitionID: o.DefinitionID,
		}
	}
	records, err := a.rs.Outcomes.Lookup(ctx, keys)
	if err != nil {
		return fmt.Errorf("look up executions of job %s: %w", a.j.ID, err)
	}
	rows, err := a.rs.Pending.Rows(ctx, locators)
	if err != nil {
		return fmt.Errorf("read entries of job %s: %w", a.j.ID, err)
	}
	var lost []*Occurrence // with nothing to show for them
	head := time.Time{}    // the first instant that is known to be pending; those after it follow from it
	for i, o := range list {
		row, found := rows[locators[i]]
		switch {
		case records[i].Outcome != nil || records[i].Alive(a.now):
			ofHot(o, &records[i], a.now)
		case o.State != "":
		case found && row.Done:
			o.State, o.Reason = "pending", "It has ended, and how comes on record in a moment."
		case found:
			o.State = "pending"
			if head.IsZero() || o.NominalAt.Before(head) {
				head = o.NominalAt
			}
		default:
			lost = append(lost, o)
		}
		if o.State != "" {
			o.ExecutionID = keys[i].ExecutionID
		}
	}
	if err := a.follow(ctx, lost, head); err != nil {
		return err
	}
	return a.held(ctx, list)
}

// ofHot shows what the hot tier knows of an attempt: it runs, or has ended so recently that the history does not have it yet.
func ofHot(o *Occurrence, rec *attempts.Record, now time.Time) {
	if rec.Alive(now) {
		if o.State = "dispatched"; rec.Running {
			o.State = "running"
		}
		o.Reason = ""
		return
	}
	out := rec.Outcome
	if o.Disposition == "" {
		o.Disposition = out.Disposition
	}
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

// follow tells apart those that are neither on record nor among the entries: an entry writes the next one when it is taken, so what
// comes after a pending one is still to come. head is one that is known; otherwise it is looked for.
func (a *account) follow(ctx context.Context, lost []*Occurrence, head time.Time) error {
	if len(lost) == 0 {
		return nil
	}
	if head.IsZero() {
		oldest := job.Minute(lost[len(lost)-1].ScheduledFor)
		err := a.rs.findOpen(ctx, bucket.Partition(a.j.ID, a.rs.Partitions), oldest, math.MaxInt64, func(row *job.PendingRow) bool {
			found := row.JobID == a.j.ID && row.FirstOfSchedule() && !row.Done
			if found {
				head = row.NominalAt
			}
			return found
		})
		if err != nil && !errors.Is(err, jobstore.ErrNotFound) {
			return err
		}
	}
	// Others may be on record between an instant and the beginning of the run with which it was skipped.
	oldest := lost[len(lost)-1].NominalAt
	before, _, err := a.rs.executions(ctx, a.j, jobstore.Cursor{NominalAt: oldest}, a.now.Add(-jobstore.HistoryTTL), recordsRead)
	if err != nil {
		return err
	}
	runs := append(slices.Clone(a.runs), before...)
	for _, o := range lost {
		switch run := covering(runs, o.NominalAt); {
		case run != nil:
			o.State, o.Disposition = run.State, run.Disposition
		case !head.IsZero() && !o.NominalAt.Before(head):
			o.State, o.Reason = "pending", "It comes after one that was not called yet."
		default:
			o.State = stateUnknown
		}
	}
	return nil
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
