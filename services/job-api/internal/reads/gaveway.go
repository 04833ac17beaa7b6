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
		if _, known := a.called[o.GaveWayTo]; !known && a.skips(o) && !o.skippedAt.IsZero() && len(unknown) < othersTold {
			a.called[o.GaveWayTo] = called{}
			unknown = append(unknown, o.GaveWayTo)
		}
	}
	read := make([]called, len(unknown))
	err := run.Each(len(unknown), othersRead, func(i int) error {
		events, err := a.rs.History.Execution(ctx, unknown[i])
		if err != nil {
			return fmt.Errorf("read history of execution %s: %w", unknown[i], err)
		}
		if list := group(events); len(list) > 0 {
			read[i] = list[0].calls()
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

// overlap returns the overlap policy under which an occurrence came.
func (a *account) overlap(o *Occurrence) job.Overlap {
	if s := a.seriesOf(o.NominalAt); s != nil {
		return s.Def.Overlap
	}
	return job.OverlapSkip
}

// skips reports whether an occurrence was skipped because another execution was in progress, and for no other reason.
func (a *account) skips(o *Occurrence) bool {
	return o.GaveWayTo != "" && o.Disposition == job.DispositionSkippedOverlap && a.overlap(o) == job.OverlapSkip
}

// ofOverlap says how the execution of another instant was in the way of an occurrence.
func (a *account) ofOverlap(o *Occurrence, other string) {
	policy := a.overlap(o)
	switch {
	case a.skips(o):
		o.Reason = fmt.Sprintf("Skipped: the execution of %s was still in %s, and the overlap_policy is skip.", other, a.called[o.GaveWayTo].progress(o.skippedAt))
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

// called is what is on record of when an execution was called. ended is set if no attempt follows.
type called struct {
	attempts []call
	ended    bool
}

// call is an attempt. It began at no time if nobody was called, or if its executor was lost before it could tell.
type call struct {
	number     int
	began, end time.Time
	refused    bool
}

// calls returns when an execution was called.
func (x *Execution) calls() called {
	c := called{ended: x.Ended()}
	for i := range x.Attempts {
		a := &x.Attempts[i]
		one := call{number: a.Number, refused: a.refused()}
		if a.StartedAt != nil && a.DurationMS != nil {
			one.began = *a.StartedAt
			one.end = one.began.Add(time.Duration(*a.DurationMS) * time.Millisecond)
		}
		c.attempts = append(c.attempts, one)
	}
	return c
}

// progress says how far an execution was at an instant, as far as that is on record: what it was still in.
func (c called) progress(at time.Time) string {
	for i := len(c.attempts) - 1; i >= 0 && !at.IsZero(); i-- {
		one := &c.attempts[i]
		switch last := i == len(c.attempts)-1; {
		case one.refused || !one.began.IsZero() && at.Before(one.began):
			continue
		case one.began.IsZero(): // it was lost with its executor
			return "progress"
		case !at.After(one.end):
			return attemptOf(one.number)
		case !last:
			return "the pause before " + attemptOf(one.number+1)
		case !c.ended:
			return "progress after " + attemptOf(one.number)
		}
		break
	}
	return "progress"
}
