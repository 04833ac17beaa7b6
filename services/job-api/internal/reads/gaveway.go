package reads

import (
	"context"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// othersTold bounds the executions that are read for a page of an account, to say how far they were when others gave way to them.
	// Most of them are on the page itself.
	othersTold = 20
	// othersRead is how many of them are read at once.
	othersRead = 4
)

// displaced reports whether another occurrence took the place of one that was cancelled.
func (a *account) displaced(o *Occurrence) bool {
	s := a.seriesOf(o.NominalAt)
	return o.NominalAt.Before(a.j.StoppedBefore) && s != nil && s.Def.Alone() && !a.j.State().Stops(o.ExecutionID)
}

// ofOverlaps says how executions of other instants were in the way of occurrences.
func (a *account) ofOverlaps(ctx context.Context, items []*Occurrence) error {
	var unknown []string
	for _, o := range items {
		if _, known := a.called[o.GaveWayTo]; !known && o.GaveWayTo != "" && o.Disposition == job.DispositionSkippedOverlap && len(unknown) < othersTold {
			a.called[o.GaveWayTo] = nil
			unknown = append(unknown, o.GaveWayTo)
		}
	}
	read := make([]*Execution, len(unknown))
	err := run.Each(len(unknown), othersRead, func(i int) error {
		events, err := a.rs.History.Execution(ctx, unknown[i])
		if err != nil {
			return fmt.Errorf("read history of execution %s: %w", unknown[i], err)
		}
		if list := group(events); len(list) > 0 {
			read[i] = list[0]
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, id := range unknown {
		a.called[id] = read[i]
	}
	for _, o := range items {
		if ref, err := job.ParseExecutionID(o.GaveWayTo); err == nil {
			a.ofOverlap(o, ref.NominalAt.Format(time.RFC3339Nano))
		}
	}
	return nil
}

// ofOverlap says how the execution of another instant was in the way of an occurrence.
func (a *account) ofOverlap(o *Occurrence, other string) {
	policy := job.OverlapSkip
	if s := a.seriesOf(o.NominalAt); s != nil {
		policy = s.Def.Overlap
	}
	switch {
	case o.Disposition == job.DispositionSkippedOverlap && policy == job.OverlapSkip:
		o.Reason = fmt.Sprintf("Skipped: the execution of %s was still in %s, and the overlap_policy is skip.", other, a.called[o.GaveWayTo].progress(job.Later(o.ScheduledFor, o.skippedAt)))
	case o.Disposition == job.DispositionSkippedOverlap && (policy == job.OverlapCancelOther || policy == job.OverlapTerminateOther):
		o.Reason = fmt.Sprintf("Skipped: the execution of %s was in progress, and nothing takes the place of a later one or of so many.", other)
	case o.Disposition == job.DispositionSkippedOverlap:
		o.Reason = fmt.Sprintf("Skipped: the execution of %s was waiting already, and the overlap_policy is %s.", other, policy)
	case o.State == "pending":
		o.Reason = fmt.Sprintf("It is called once the execution of %s has ended, as the overlap_policy asks.", other)
	default:
		o.Reason += fmt.Sprintf(" Until then it waited for the execution of %s.", other)
	}
}

// progress says how far an execution was at an instant, as far as that is on record: what it was still in.
func (x *Execution) progress(at time.Time) string {
	if x == nil {
		return "progress"
	}
	for i := len(x.Attempts) - 1; i >= 0; i-- {
		a := &x.Attempts[i]
		if a.StartedAt == nil || a.DurationMS == nil || at.Before(*a.StartedAt) {
			continue
		}
		last := i == len(x.Attempts)-1
		switch ended := a.StartedAt.Add(time.Duration(*a.DurationMS) * time.Millisecond); {
		case !at.After(ended):
			return attemptOf(a.Number)
		case !last:
			return "the pause before " + attemptOf(a.Number+1)
		case !x.Ended():
			return "progress after " + attemptOf(a.Number)
		}
		break
	}
	return "progress"
}
